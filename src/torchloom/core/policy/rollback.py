"""A policy rolls a job back to before its numbers went wrong, and leaves out the batches that did it.

Owns which steps are to blame, which state is early enough, and asking the ranks; all of them go back or none
does (the same operation as a person's restore). steering/after_rollback.py reports the outcome.
"""

from __future__ import annotations

from torchloom.core.steering.driver import change_requested
from torchloom.core.turn import Turn
from torchloom.model.events import ChangeRequested, FindingMade
from torchloom.model.findings import Finding
from torchloom.model.fleet import Job, JobState
from torchloom.model.incidents import Decision, DecisionOutcome, Incident
from torchloom.model.policy import Policy
from torchloom.model.steering import Origin
from torchloom.model.transaction.messages import Kind


def blamed_steps(policy: Policy, finding: Finding, offset: int | None) -> tuple[int, int] | None:
    """The first and last training step whose batches may be to blame; None when that is not known.

    A value is logged before or after the step that it belongs to, and bad gradients show in the loss of the
    step after: so a value logged after n steps blames the batches of n - 1 to n + 1. Where values were looked
    at less often than every step, everything since the last good one is to blame.
    """
    step, good = finding.inputs.get("step"), finding.inputs.get("good_step")
    if offset is None or not isinstance(step, int | float):
        return None
    last = int(step) + 1
    first = last + 1 - max(1, policy.skip_batches)
    if isinstance(good, int | float):
        first = min(first, int(good) + 1)
    return max(1, first + offset), last + offset


def why_not(job: Job, event: FindingMade) -> str:
    """Why it cannot be done; empty if it can."""
    if job.state is not JobState.RUNNING or not job.control.step:
        return "not every rank has made a step yet"
    if event.restore_step is None:
        return event.restore_why or "no checkpoint from before it is known"
    if any(record.kind is Kind.RESTORE and not record.ended for record in job.operations.values()):
        return "the job is going back already"
    return ""


def how(policy: Policy, event: FindingMade) -> str:
    text = f"to the end of step {event.restore_step}"
    span = _skipped(policy, event)
    return f"{text}, without the batches of steps {span[0]} to {span[1]}" if span else text


def roll_back(turn: Turn, job: Job, incident: Incident, event: FindingMade, reason: str) -> None:
    incident.timeline.decided_ns = turn.now_ns
    incident.decided = Decision(action="rollback", outcome=DecisionOutcome.PENDING, reason=reason)
    values: dict[str, object] = {"step": event.restore_step, "checkpoint": event.restore_name}
    span = _skipped(job.spec.policy, event)
    if span is not None:
        values["skip"] = list(span)
    change_requested(
        turn,
        ChangeRequested(
            job=job.id,
            operation=f"{incident.id}.rollback.{turn.seq}",
            kind=Kind.RESTORE,
            values=values,
            two_phase=True,
            step_s=event.step_s,
            by="policy",
            why=incident.verdict,
            origin=Origin.POLICY,
            incident=incident.id,
        ),
    )


def _skipped(policy: Policy, event: FindingMade) -> tuple[int, int] | None:
    if not event.finding.traits.blames_batches or not policy.skip_batches:
        return None  # no batch did it
    return blamed_steps(policy, event.finding, event.offset)
