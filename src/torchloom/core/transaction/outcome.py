"""From the reports of the ranks to one sentence: the outcome of a confirmed operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchloom.model.transaction.messages import Answer, AttemptId, Said
from torchloom.model.transaction.operation import How, Outcome


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """What the reports amount to."""

    how: How
    reason: str
    again: bool = False
    """Every rank reports that it was only too late, so it may be tried again."""
    undone: bool = False
    """It was tried on the ranks and taken back, because of a rank that could not."""
    unheard: tuple[int, ...] = ()
    answers: Mapping[int, Answer] = field(default_factory=dict)

    def outcome(self, attempt: AttemptId, at_step: int, tries: int) -> Outcome:
        applied = self.how is not How.NOT_APPLIED
        offsets = {a.offset for a in self.answers.values() if a.said is Said.APPLIED}
        return Outcome(
            version=attempt.version,
            how=self.how,
            reason=self.reason,
            generation=attempt.generation,
            at_step=at_step if applied else 0,
            offset=offsets.pop() if len(offsets) == 1 else None,
            attempts=tries,
            unheard=self.unheard,
            changed={rank: a.changed for rank, a in sorted(self.answers.items()) if a.changed},
            trouble={
                rank: a.why
                for rank, a in sorted(self.answers.items())
                if a.why and a.said in (Said.UNDONE, Said.BROKEN, Said.LEFT)
            },
            raised=tuple(rank for rank, a in sorted(self.answers.items()) if a.raised),
        )


def judge(
    answers: Mapping[int, Answer], world: int, at_step: int, gone: Mapping[int, str], withdrawn: str
) -> AttemptResult:
    """One rank that applied speaks for all that reach the step, and so does one that did not.

    A rank that broke or left says nothing about the others: it never passed the boundary.
    """
    unheard = tuple(rank for rank in range(world) if rank not in answers)
    applied = [rank for rank, a in sorted(answers.items()) if a.said is Said.APPLIED]
    against = [rank for rank, a in sorted(answers.items()) if a.said in (Said.NOT_APPLIED, Said.UNDONE)]
    offsets = {a.offset for a in answers.values() if a.said in (Said.APPLIED, Said.UNDONE)}
    step = at_step + ((offsets.pop() or 0) if len(offsets) == 1 else 0)  # as the script counts, if it reports
    silence = f"; no report of rank {', '.join(map(str, unheard))}" if unheard else ""
    if applied and against:
        reason = f"rank {applied[0]} applied it at step {step} and rank {against[0]} did not"
        return AttemptResult(How.DIVERGED, reason, unheard=unheard, answers=answers)
    if applied:
        where = "all ranks" if len(applied) == world else f"rank {', '.join(map(str, applied))}"
        reason = f"applied at step {step} on {where}{silence}"
        return AttemptResult(How.APPLIED, reason, unheard=unheard, answers=answers)
    undone = [a for a in answers.values() if a.said is Said.UNDONE]
    if undone:
        reason = f"undone on every rank at step {step}: {_last_line(undone[0].why)}{silence}"
        return AttemptResult(How.NOT_APPLIED, reason, undone=True, unheard=unheard, answers=answers)
    if against:
        why = withdrawn or answers[against[0]].why
        again = len(against) == world
        return AttemptResult(
            How.NOT_APPLIED, f"{why}{silence}", again=again, unheard=unheard, answers=answers
        )
    said = "; ".join(f"rank {rank} {a.said}: {_last_line(a.why)}" for rank, a in sorted(answers.items()))
    ended = said or withdrawn or "; ".join(f"rank {rank}: {why}" for rank, why in sorted(gone.items()))
    return AttemptResult(
        How.NOT_APPLIED,
        f"the generation ended, and no rank was seen to apply it ({ended})",
        unheard=unheard,
        answers=answers,
    )


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
