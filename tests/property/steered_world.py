"""The simulated world of the core with people who steer and ranks that answer, truly or not.

How ranks agree is checked elsewhere (transaction_world.py); here they say whatever could come through the
stream, so that the fleet around them is tried: records, mail, timers, stops and restores by agreement.
"""

from __future__ import annotations

from collections.abc import Callable

from world import ACTIONS, WEIGHTS, World

from torchloom.core.transaction.packing import pack_answers, unpack_mail
from torchloom.model.effects import PostMail
from torchloom.model.events import (
    ChangeCancelled,
    ChangeRequested,
    RanksAnswered,
    RestoreRequested,
    StepReached,
    StopRequested,
    WorkerProgress,
)
from torchloom.model.fleet import Job
from torchloom.model.transaction.messages import Answer, Kind, Mail, Phase, Said

GOOD = {Phase.PREPARE: Said.PREPARED, Phase.ARM: Said.ARMED, Phase.CONFIRM: Said.APPLIED}
BAD = (Said.REFUSED, Said.TOO_LATE, Said.NOT_APPLIED, Said.UNDONE, Said.LEFT, Said.BROKEN)


class SteeredWorld(World):
    def _job(self, number: int) -> Job | None:
        return self.fleet.jobs.get(f"job-{number % 3}")

    def _id(self) -> str:
        return f"{len(self.stream):x}"

    def change(self, number: int) -> None:
        job = self._job(number)
        if job is None:
            return
        kinds = (Kind.SET, Kind.SET, Kind.SET, Kind.PAUSE, Kind.RESUME, Kind.CHECKPOINT, Kind.PROBE)
        kind = kinds[number // 3 % len(kinds)]
        event = ChangeRequested(
            job=job.id,
            operation=self._id(),
            kind=kind,
            values={"lr": number / 1000} if kind is Kind.SET else {},
            two_phase=number % 2 == 0,
            at_step=number % 60 if number % 7 == 0 else None,
            training_step=number % 50 if number % 5 == 0 else None,
            generation=max(0, job.generation - (number % 13 == 0)),
            step_s=number % 3 / 10,
            by="ann",
        )
        self.say(event)

    def cancel(self, number: int) -> None:
        job = self._job(number)
        if job is not None and job.operations:
            chosen = list(job.operations)[number // 3 % len(job.operations)]
            self.say(ChangeCancelled(job=job.id, operation=chosen, by="bob"))

    def near(self, number: int) -> None:
        job = self._job(number)
        if job is not None:
            self.say(StepReached(job=job.id, generation=job.generation, step=number % 70, step_s=0.1))

    def steered_stop(self, number: int) -> None:
        job = self._job(number)
        if job is not None:
            progress = tuple(WorkerProgress(w.ref.rank, 7, 0.1) for w in job.workers)
            self.say(StopRequested(job=job.id, by="bob", progress=progress, hears=True))

    def steered_restore(self, number: int) -> None:
        job = self._job(number)
        if job is not None:
            key = (job.id, job.submitted_at_ns)
            self._restores[key] = self._restores.get(key, 0) + 1
            progress = tuple(WorkerProgress(w.ref.rank, 7, 0.1) for w in job.workers)
            event = RestoreRequested(
                job=job.id,
                step=number % 9,
                by="eve",
                progress=progress,
                operation=self._id(),
                config=("", "keep", "revert")[number % 3],
                checkpoint="step-1.g1",
            )
            self.say(event)

    def answer(self, number: int) -> None:
        """Ranks of one node answer some mail that was ever wanted for them; mostly well."""
        mails = [e for e in self.wanted if isinstance(e, PostMail)][-8:]
        if mails:
            self._answer(mails[number % len(mails)], number)

    def answer_open(self, number: int) -> None:
        for effect in [e for e in self.fleet.outbox.values() if isinstance(e, PostMail)]:
            self._answer(effect, number * 11)

    def good_talk(self, number: int) -> None:
        """All agents are up, all processes step, and ranks answer well for a while."""
        self.good_start(number)
        for host in self.hosts:
            for ref in list(host.processes):
                host.step(ref, 1 + number % 40, self.now_ns)
        self.good_moment(number)
        for _ in range(1 + number % 6):
            self.answer_open(number)

    def _answer(self, effect: PostMail, number: int) -> None:
        mail = unpack_mail(effect.mail.encode())[-1]
        answers = [self._said(mail, ref.rank, number) for ref in effect.workers]
        event = RanksAnswered(
            node=effect.node,
            job=effect.job,
            generation=effect.generation,
            answers=pack_answers(answers).decode(),
        )
        self.say(event)

    def _said(self, mail: Mail, rank: int, number: int) -> Answer:
        said = GOOD.get(mail.phase, Said.NOT_APPLIED)
        if number % 11 == rank + 1:
            said = BAD[number // 11 % len(BAD)]
        step = max(mail.at_step, number % 30)
        changed = (("optimizer0.lr@0", 0.1, 0.2),) if said is Said.APPLIED else ()
        return Answer(
            mail.proposal.attempt,
            rank,
            said,
            step,
            step_ns=10**7,
            anchor="SGD",
            why="because",
            changed=changed,
            offset=number % 2 or None,
        )

    def check_told(self) -> None:
        """Every operation of a job that is over has been told, once and for good."""
        for job in self.fleet.jobs.values():
            for record in job.operations.values():
                assert record.ended or not job.ended, f"{job.id}: {record.id} is {record.state}"
                assert record.reason and bool(record.ended_at_ns) == record.ended, record
            steps = [(entry.step, entry.version) for entry in job.schedule]
            assert steps == sorted(steps) and len({v for _, v in steps}) == len(steps), steps


STEERED: dict[str, Callable[[SteeredWorld, int], None]] = {
    **{name: lambda world, number, act=act: act(world, number) for name, act in ACTIONS.items()},  # type: ignore[misc]
    "change": SteeredWorld.change,
    "cancel": SteeredWorld.cancel,
    "near": SteeredWorld.near,
    "steered stop": SteeredWorld.steered_stop,
    "steered restore": SteeredWorld.steered_restore,
    "answer": SteeredWorld.answer,
    "answer open": SteeredWorld.answer_open,
    "good talk": SteeredWorld.good_talk,
}
STEERED_WEIGHTS = {
    **WEIGHTS,
    "change": 12,
    "answer": 4,
    "answer open": 16,
    "good start": 6,
    "step": 16,
    "near": 2,
}
