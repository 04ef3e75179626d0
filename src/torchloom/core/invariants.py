"""What must hold after every event. Property tests check it; a weaver may check it while debugging."""

from __future__ import annotations

from torchloom.model.effects import StartWorkers
from torchloom.model.fleet import Fleet, Job, JobState


def broken(fleet: Fleet) -> list[str]:
    """Sentences about what is wrong; empty when all is well."""
    found: list[str] = []
    for job in fleet.jobs.values():
        found += _job(job)
    for effect in fleet.outbox.values():
        if not effect.reason:
            found.append(f"effect {effect.id} has no reason")
        if isinstance(effect, StartWorkers):
            wanted = fleet.jobs.get(effect.job)
            if wanted is None or wanted.ended or wanted.generation != effect.generation:
                found.append(f"effect {effect.id} would start workers of a generation that is not wanted")
    return found


def _job(job: Job) -> list[str]:
    found = []
    limits = job.spec.restarts
    alive = [w for w in job.workers if w.alive]
    if not job.reason:
        found.append(f"{job.id} is {job.state} for no reason")
    if job.restarts > limits.max_restarts:
        found.append(f"{job.id} was restarted {job.restarts} times, allowed are {limits.max_restarts}")
    if job.ended and alive:
        found.append(f"{job.id} has ended and {len(alive)} of its workers may live")
    if any(w.ref.generation != job.generation for w in job.workers):
        found.append(f"{job.id} holds workers of several generations")
    if [w.ref.rank for w in job.workers] != list(range(len(job.workers))):
        found.append(f"{job.id} has ranks that are not dense")
    if job.state in (JobState.BACKOFF, JobState.WAITING) and alive:
        found.append(f"{job.id} waits while workers may live")
    if job.state is JobState.RECOVERING and (job.plan is None or not alive):
        found.append(f"{job.id} recovers without a plan or with nothing to wait for")
    if job.state is JobState.RUNNING and not alive:
        found.append(f"{job.id} runs without a worker")
    return found
