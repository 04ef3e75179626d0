"""What follows once a job went back by its policy: what was left out is kept, the incident ends. Where it
did not go back, nothing else is done instead."""

from __future__ import annotations

from torchloom.core.incidents import close
from torchloom.core.schedule import record as record_entry
from torchloom.core.settings import SKIPPED
from torchloom.core.turn import Turn
from torchloom.model.fleet import Job
from torchloom.model.steering import OperationRecord
from torchloom.model.transaction.config import Entry

MARK = ".rollback."
_NAMED = 8
"""Runs of samples that are named one by one."""


def rolled_back(turn: Turn, job: Job, record: OperationRecord) -> None:
    """All ranks stand at the earlier state."""
    left_out = _keep_skips(turn, job, record)
    incident = turn.fleet.incidents.get(record.id.partition(MARK)[0])
    if MARK not in record.id or incident is None or not incident.open:
        return
    incident.timeline.restored_ns = turn.now_ns
    done = f"rolled back to the end of step {record.values.get('step')}"
    incident.decision = f"{done}, {left_out}"
    close(turn, job, incident, done)
    for name in [name for name, id in job.findings.items() if id == incident.id]:
        del job.findings[name]


def left_as_it_is(turn: Turn, record: OperationRecord) -> bool:
    """Whether a policy wanted it and no rank went back: odd numbers are no reason to end what trains."""
    if MARK not in record.id or record.state != "not applied":
        return False
    incident = turn.fleet.incidents.get(record.id.partition(MARK)[0])
    if incident is not None and incident.open:
        incident.decision = f"not rolled back: {record.reason}"
    return True


def went_apart(turn: Turn, record: OperationRecord) -> None:
    """Some ranks went back and others did not: all do by a restart, which leaves out nothing."""
    incident = turn.fleet.incidents.get(record.id.partition(MARK)[0])
    if MARK in record.id and incident is not None and incident.open:
        incident.decision = (
            f"restarted at the end of step {record.values.get('step')}, because not all ranks went back: "
            f"{record.reason}; no batch was left out"
        )


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
            job.schedule = record_entry(job.schedule, entry)
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
