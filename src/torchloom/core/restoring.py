"""A person wants a job to go on from an earlier state: the next generation begins from it.

A job that trains is ended at a step boundary first, one that has ended is begun again. Neither is a failure,
so neither costs anything of the restart budget, and tries without progress are counted from 0 again.
Whether the state is there was looked at before; this module never sees a store.
"""

from __future__ import annotations

from torchloom.core.ending import settle, stop_workers
from torchloom.core.generation import start_generation
from torchloom.core.lifecycle import move_job
from torchloom.core.stopping import boundary
from torchloom.core.turn import Turn
from torchloom.model.events import RestoreRequested
from torchloom.model.fleet import Job, JobState, Restore


def restore_requested(turn: Turn, event: RestoreRequested) -> None:
    job = turn.fleet.jobs.get(event.job)
    if job is None:
        return
    job.restore = Restore(step=event.step, by=event.by, after=job.generation)
    job.fruitless = 0
    reason = f"{event.by} restores step {event.step}"
    match job.state:
        case JobState.WAITING:
            pass  # it begins from there as soon as there is room
        case JobState.BACKOFF:
            start_generation(turn, job, reason)
        case JobState.COMPLETED | JobState.FAILED | JobState.STOPPED:
            job.incident = ""  # it is over; what comes now recovers nothing
            start_generation(turn, job, reason)
        case JobState.STOPPING:
            job.reason = f"{reason}, once it has stopped"
        case JobState.RECOVERING:
            _instead_of_plan(turn, job, reason)
        case JobState.STARTING | JobState.RUNNING:
            at_step, wait_s = None, 0.0
            if job.state is JobState.RUNNING:
                at_step, wait_s = boundary(event.progress, len(job.workers))
            move_job(turn, job, JobState.STOPPING, reason)
            turn.cancel_timers(job)
            grace_s = job.spec.stop_grace_s
            stop_workers(turn, job, reason=reason, grace_s=grace_s, at_step=at_step, boundary_wait_s=wait_s)
            settle(turn, job)


def _instead_of_plan(turn: Turn, job: Job, reason: str) -> None:
    """Its workers are being ended already: only what follows is another thing now."""
    job.plan = None
    turn.fleet.incidents[job.incident].decision = reason
    move_job(turn, job, JobState.STOPPING, reason)
    settle(turn, job)
