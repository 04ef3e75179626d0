"""What follows from the outcome of an operation beyond its record: other ways to what a person wanted."""

from __future__ import annotations

from torchloom.core.policy.link_findings import links_measured, links_not_measured
from torchloom.core.steering.restore import restore_not_applied
from torchloom.core.steering.stop import boundary_not_reached
from torchloom.core.turn import Turn
from torchloom.model.transaction.messages import Kind


def follow_outcomes(turn: Turn) -> None:
    """Look at every operation that ended in this turn."""
    while turn.ended_operations:
        name, operation = turn.ended_operations.pop(0)
        job = turn.fleet.jobs.get(name)
        record = job.operations.get(operation) if job is not None else None
        if job is None or record is None:
            continue
        if record.state == "applied":
            if record.kind is Kind.PROBE:
                links_measured(turn, job, record)
        elif record.kind is Kind.PROBE:
            links_not_measured(turn, job, record)
        elif record.kind is Kind.RESTORE:
            restore_not_applied(turn, job, record)
        elif record.kind is Kind.STOP:
            boundary_not_reached(turn, job)
