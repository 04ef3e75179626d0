"""A person wants a job to have more or fewer workers: the next generation has so many, and begins at once.

Never by itself: a healthy job is ended only because somebody asked, and only while there is room for what was
asked. It is no failure, so it costs nothing of the restart budget.
"""

from __future__ import annotations

from torchloom.core.lifecycle import move_job
from torchloom.core.placement.place import fits, unit
from torchloom.core.recovery.generation_start import start_generation
from torchloom.core.steering.stop import end_at_boundary
from torchloom.core.turn import Turn
from torchloom.model.events import ScaleRequested
from torchloom.model.fleet import Fleet, Job, JobState


def scale_requested(turn: Turn, event: ScaleRequested) -> None:
    job = turn.fleet.jobs.get(event.job)
    if job is None or job.ended or refusal(turn.fleet, job, event.workers):
        return  # the caller sees that nothing was changed
    job.target = event.workers
    reason = f"{event.by} wants {event.workers} workers"
    match job.state:
        case JobState.WAITING:
            start_generation(turn, job, reason)
        case JobState.STARTING | JobState.RUNNING if len(job.workers) != event.workers:
            progress = event.progress if job.state is JobState.RUNNING else ()
            move_job(turn, job, JobState.STOPPING, reason)
            turn.cancel_timers(job)
            job.resizing = job.generation
            grace_s = job.spec.stop_grace_s
            end_at_boundary(turn, job, event.by, reason, grace_s, progress, event.hears)
        case _:
            pass  # the next start has that many


def refusal(fleet: Fleet, job: Job, workers: int) -> str:
    """Why the job cannot have so many workers; empty when it can."""
    spec = job.spec
    least = spec.min_workers or spec.world_size
    most = spec.max_workers or spec.world_size
    if not least <= workers <= most:
        if least == most:
            limits = "submit with --min-workers and --max-workers what shall change its size"
            return f"{job.id} was submitted for {most} workers only: {limits}."
        return f"{job.id} was submitted for {least} to {most} workers."
    if workers % unit(spec):
        return f"{job.id} has replicas of {unit(spec)} workers, so it can have a multiple of that only."
    if workers > len(job.workers) and not fits(fleet, job, workers):
        return f"There is no room for {workers} workers of {job.id} now."
    return ""
