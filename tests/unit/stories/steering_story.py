"""A story of the core with ranks that answer: for the unit tests of steering. It chooses nothing."""

from __future__ import annotations

from core_story import Story

from torchloom.core.transaction.packing import pack_answers, unpack_mail
from torchloom.model.effects import Effect, PostMail
from torchloom.model.events import ChangeRequested, RanksAnswered
from torchloom.model.steering import OperationRecord
from torchloom.model.transaction.messages import Answer, Changed, Kind, Mail, Phase, Said


class SteeringStory(Story):
    def step(self, job: str = "j") -> None:
        """Every rank makes its first step."""
        for rank in range(len(self.job(job).workers)):
            self.first_step(rank, job=job)

    def ask(
        self, values: dict[str, object] | None = None, operation: str = "op", job: str = "j", **more: object
    ) -> list[Effect]:
        kind = more.pop("kind", Kind.SET)
        event = ChangeRequested(
            job=job,
            operation=operation,
            kind=kind,  # type: ignore[arg-type]
            values=values or {},
            by="ann",
            generation=self.job(job).generation,
            **more,  # type: ignore[arg-type]
        )
        return self.tell(event)

    def mail(self, job: str = "j") -> Mail:
        """The newest mail that is on its way to the first node."""
        effect = [e for e in self.fleet.outbox.values() if isinstance(e, PostMail) and e.job == job][-1]
        return unpack_mail(effect.mail.encode())[-1]

    def answer(
        self,
        said: Said,
        ranks: tuple[int, ...] = (0, 1),
        *,
        step: int = 10,
        job: str = "j",
        held: bool = False,
        why: str = "",
        changed: tuple[Changed, ...] = (),
        offset: int | None = None,
    ) -> list[Effect]:
        attempt = self.mail(job).proposal.attempt
        effects: list[Effect] = []
        nodes = dict.fromkeys(self.job(job).workers[rank].node for rank in ranks)
        for node in nodes:
            mine = [
                Answer(
                    attempt, rank, said, step, held, 20_000_000, "AdamW", why, changed=changed, offset=offset
                )
                for rank in ranks
                if self.job(job).workers[rank].node == node
            ]
            event = RanksAnswered(
                node=node,
                job=job,
                generation=self.job(job).generation,
                answers=pack_answers(mine).decode(),
            )
            effects += self.tell(event)
        return effects

    def carry(self, ranks: tuple[int, ...] = (0, 1), *, step: int = 10, **more: object) -> int:
        """From PREPARE to the outcome; the step at which it was applied."""
        self.answer(Said.PREPARED, ranks, step=step, **more)  # type: ignore[arg-type]
        mail = self.mail()
        assert mail.phase is Phase.ARM
        self.answer(Said.ARMED, ranks, step=step + 1)
        assert self.mail().phase is Phase.CONFIRM
        self.answer(Said.APPLIED, ranks, step=mail.at_step, **more)  # type: ignore[arg-type]
        return mail.at_step

    def record(self, operation: str = "op", job: str = "j") -> OperationRecord:
        return self.job(job).operations[operation]


def running(workers: int = 2, nodes: int = 1) -> SteeringStory:
    """A job whose ranks have all made a step."""
    story = SteeringStory(a=8, b=8)
    story.run(workers=workers, nodes=nodes)
    story.step()
    return story
