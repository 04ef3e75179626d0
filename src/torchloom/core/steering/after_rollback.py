"""What follows once a job went back: what is saved of its branch, what was left out, and the end of the
incident if its policy wanted it. Where it did not go back, nothing else is done instead."""

from __future__ import annotations

from msgspec.structs import replace

from torchloom.core.config.settings import SKIPPED
from torchloom.core.recovery.incidents import close
from torchloom.core.steering.versions import record_change
from torchloom.core.turn import Turn
from torchloom.model.fleet import Job
from torchloom.model.incidents import Decision, DecisionOutcome, EndedBy, Ending, Incident
from torchloom.model.steering import OperationRecord, Origin
from torchloom.model.transaction.config import Entry

_NAMED = 8
"""Runs of samples that are named one by one."""


def rolled_back(turn: Turn, job: Job, record: OperationRecord) -> None:
    """All ranks are back at the earlier state."""
    step = record.values.get("step")
    if isinstance(step, int):
        gone_back(turn, job, step, str(record.values.get("checkpoint", "")))
    left_out = _keep_skips(turn, job, record)
    incident = _wanted_for(turn, record)
    if incident is None:
        return
    incident.timeline.restored_ns = turn.now_ns
    done = f"rolled back to the end of step {step}"
    incident.decided = Decision(action="rollback", outcome=DecisionOutcome.DONE, reason=f"{done}, {left_out}")
    close(turn, job, incident, Ending(EndedBy.ROLLBACK, done))
    for name in [name for name, id in job.findings.items() if id == incident.id]:
        del job.findings[name]


def gone_back(turn: Turn, job: Job, step: int, name: str) -> None:
    """Training resumes from this state: what was saved, or could not be, later is of another branch."""
    known = job.checkpoints
    if known is None:
        return
    if known.saved is not None and known.saved.step > step:
        known.saved = replace(known.saved, name=name, step=step, at_ns=turn.now_ns)
    if known.failed_at[1] > step:
        known.failed_at = (known.failed_at[0], step)


def left_as_it_is(turn: Turn, record: OperationRecord) -> bool:
    """Whether a policy wanted it and no rank went back: odd numbers are no reason to end the job."""
    if record.origin is not Origin.POLICY or record.state != "not applied":
        return False
    incident = _wanted_for(turn, record)
    if incident is not None:
        incident.decided = Decision(action="rollback", outcome=DecisionOutcome.REFUSED, reason=record.reason)
    return True


def went_apart(turn: Turn, record: OperationRecord) -> None:
    """Some ranks went back and others did not: restart all of them, without leaving out batches."""
    incident = _wanted_for(turn, record)
    if incident is not None:
        reason = (
            f"restarted at the end of step {record.values.get('step')}, because not all ranks went back: "
            f"{record.reason}; no batch was left out"
        )
        incident.decided = Decision(action="restart", outcome=DecisionOutcome.DONE, reason=reason)


def _wanted_for(turn: Turn, record: OperationRecord) -> Incident | None:
    """The incident because of which a policy wanted this rollback, while it is open."""
    incident = turn.fleet.incidents.get(record.incident) if record.origin is Origin.POLICY else None
    return incident if incident is not None and incident.open else None


def _keep_skips(turn: Turn, job: Job, record: OperationRecord) -> str:
    """In force from the very first step on, so that every later start and restore leaves them out as well."""
    for address, before, after in record.changed:
        if address == SKIPPED:
            entry = Entry(
                version=record.version,
                step=0,
                values={SKIPPED: after},
                before={SKIPPED: before},
                by=record.by,
                why=record.why,
                at_ns=turn.now_ns,
            )
            record.config_version = record_change(job, entry)
            return f"and these samples are left out from now on: {_in_short(str(after))}"
    return (
        "no batch was left out"
        if "skip" not in record.values
        else (
            "but the batches to blame could not be left out, because the script's data has no places to "
            "name, or too many"
        )
    )


def _in_short(text: str) -> str:
    """For one line: a batch of lines in shards is a run of places of every rank's."""
    runs = text.split(",")
    if len(runs) <= _NAMED:
        return text
    return f"{','.join(runs[:_NAMED])} and {len(runs) - _NAMED} runs more (setting {SKIPPED})"
