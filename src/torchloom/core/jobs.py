"""Jobs come and go: a submission is taken once, a deletion leaves nothing behind but the job's numbers."""

from __future__ import annotations

from torchloom.core.recovery.generation_start import start_generation
from torchloom.core.turn import Turn
from torchloom.model.effects import RemoveJobFiles
from torchloom.model.events import JobDeleted, JobSubmitted
from torchloom.model.fleet import Job, JobState, NodeState, PastLife, Submission

REMEMBERED_JOBS = 4096
"""Deleted jobs whose numbers are kept; their stragglers are long gone when this many others were deleted."""
REMEMBERED_KEYS = 4096


def job_submitted(turn: Turn, event: JobSubmitted) -> None:
    fleet = turn.fleet
    if event.key and event.key in fleet.keys:
        return  # a retry, or another client with the same key: the first one made the job
    if event.job in fleet.jobs:
        return
    if event.key:
        fleet.keys[event.key] = Submission(event.job, event.digest)
        if len(fleet.keys) > REMEMBERED_KEYS:
            del fleet.keys[next(iter(fleet.keys))]
    for effect in turn.open_of(event.job):
        if isinstance(effect, RemoveJobFiles):
            turn.close(effect.id)  # what it would remove later is no longer only the old job's
    past = fleet.past_lives.pop(event.job, PastLife(0, 1))
    job = Job(
        id=event.job,
        spec=event.spec,
        by=event.by,
        state=JobState.WAITING,
        reason="submitted",
        submitted_at_ns=turn.now_ns,
        env_id=event.env_id,
        generation=past.generation,
        next_incarnation=past.next_incarnation,
    )
    fleet.jobs[job.id] = job
    fleet.waiting[job.id] = None
    if event.spec.standby:
        fleet.standby[job.id] = None
    start_generation(turn, job, f"submitted by {event.by}")


def job_deleted(turn: Turn, event: JobDeleted) -> None:
    """Only an ended job goes. Its numbers stay, so that a new job of its name cannot be mistaken for it."""
    fleet = turn.fleet
    job = fleet.jobs.get(event.job)
    if job is None or not job.ended or (event.env_id and event.env_id != job.env_id):
        return
    for incident in job.incidents:
        fleet.incidents.pop(incident, None)
    del fleet.jobs[event.job]
    fleet.standby.pop(event.job, None)
    fleet.past_lives[job.id] = PastLife(job.generation, job.next_incarnation)
    if len(fleet.past_lives) > REMEMBERED_JOBS:
        del fleet.past_lives[next(iter(fleet.past_lives))]
    if event.keep_logs:
        return
    for node in job.places | dict.fromkeys(w.node for w in job.workers):
        if fleet.nodes[node].state is NodeState.GONE:
            continue  # nobody would ever say that it is done
        turn.want(
            RemoveJobFiles(
                id=turn.next_effect_id(),
                cause=turn.seq,
                reason=f"{job.id} was deleted by {event.by}",
                node=node,
                job=job.id,
                generation=job.generation,
            )
        )
