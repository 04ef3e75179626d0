"""A person wants a job to begin again from its newest checkpoint: one that runs, or one that has ended.

It is no failure, so it costs nothing of the restart budget, and tries without progress are counted from 0
again. A job that ended by its last step (`max_steps`) gets another one with it.
"""

from __future__ import annotations

from torchloom.core.config.settings import MAX_STEPS
from torchloom.core.lifecycle import move_job
from torchloom.core.recovery.generation_start import start_generation
from torchloom.core.steering.operations import open_record, schedule_change
from torchloom.core.steering.stop import end_at_boundary
from torchloom.core.transaction.proposer import reserve_version
from torchloom.core.turn import Turn
from torchloom.model.events import RestartRequested
from torchloom.model.fleet import Job, JobState
from torchloom.model.steering import OperationRecord
from torchloom.model.transaction.messages import Kind


def restart_requested(turn: Turn, event: RestartRequested) -> None:
    job = turn.fleet.jobs.get(event.job)
    if job is None:
        return
    if event.max_steps is not None:
        _end_at(turn, job, event.max_steps, event.by)
    job.fruitless = 0
    reason = f"restarted by {event.by}"
    match job.state:
        case JobState.COMPLETED | JobState.FAILED | JobState.STOPPED:
            job.incident = ""  # it is over; what comes now recovers nothing
            start_generation(turn, job, reason)
        case JobState.BACKOFF:
            start_generation(turn, job, reason)
        case JobState.STARTING | JobState.RUNNING:
            progress = event.progress if job.state is JobState.RUNNING else ()
            move_job(turn, job, JobState.STOPPING, reason)
            turn.cancel_timers(job)
            job.resizing = job.generation
            end_at_boundary(turn, job, event.by, reason, job.spec.stop_grace_s, progress, event.hears)
        case JobState.STOPPING:
            job.resizing, job.reason = job.generation, f"{reason}, once it has stopped"
        case JobState.WAITING | JobState.RECOVERING:
            pass  # it starts anyway


def _end_at(turn: Turn, job: Job, last_step: int, by: str) -> None:
    """The next generation is given it, so no rank has to agree."""
    record = OperationRecord(
        id=f"{turn.seq:012x}",
        version=reserve_version(job.control),
        kind=Kind.SET,
        by=by,
        why="restart",
        values={MAX_STEPS.name: last_step},
    )
    open_record(turn, job, record)
    schedule_change(turn, job, record, 0)
    record.state, record.ended_at_ns = "applied", turn.now_ns
    record.reason = "it holds from the restart on"
