"""What must hold after every event. Property tests check it; a weaver may check it while debugging."""

from __future__ import annotations

from collections import Counter

from torchloom.core.turn import jobs_of
from torchloom.model.effects import StartWorkers
from torchloom.model.fleet import Fleet, Job, JobState, NodeState, WorkerState


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
    return found + _counts(fleet)


def _counts(fleet: Fleet) -> list[str]:
    """Counters that are kept up to date must equal a full recount."""
    found = []
    waiting = {job.id for job in fleet.jobs.values() if job.state is JobState.WAITING}
    if set(fleet.waiting) != waiting:
        found.append(f"{sorted(fleet.waiting)} are listed as waiting, {sorted(waiting)} wait")
    slots = Counter((w.node, job.id) for job in fleet.jobs.values() for w in job.workers if w.alive)
    counted = {(node.id, job): n for node in fleet.nodes.values() for job, n in node.jobs.items()}
    if counted != slots:
        found.append(f"slots are counted as {counted}, taken are {dict(slots)}")
    if any(node.taken != sum(node.jobs.values()) for node in fleet.nodes.values()):
        found.append("a node counts other slots than its jobs take")
    spares = {(n, j.id): j.spec.workers_per_node for j in fleet.jobs.values() for n in j.spares}
    if spares != {(n.id, job): slots for n in fleet.nodes.values() for job, slots in n.spare.items()}:
        found.append("the spare places listed by node are not those of the jobs")
    for node in fleet.nodes.values():
        own = node.spare.keys() & node.jobs.keys()
        if node.spare and (own or node.room < 0 or node.state is not NodeState.READY):
            found.append(f"{node.id} keeps spare places that nobody could use")
    stores = {(j.rendezvous_node, j.id) for j in fleet.jobs.values() if j.rendezvous is not None}
    if stores != {(node.id, job) for node in fleet.nodes.values() for job in node.stores}:
        found.append("the stores listed by node are not those of the jobs")
    listed = {(job, effect) for job, effects in fleet.open_by_job.items() for effect in effects}
    if listed != {(job, e.id) for e in fleet.outbox.values() for job in jobs_of(e)}:
        found.append("the outbox and its index by job differ")
    for timer in fleet.timers.values():
        if timer.job not in fleet.jobs or fleet.jobs[timer.job].ended:
            found.append(f"timer {timer.id} is set for a job that is over")
    return found


def _job(job: Job) -> list[str]:
    found = []
    limits = job.spec.restarts
    alive = [w for w in job.workers if w.alive]
    if job.living != len(alive):
        found.append(f"{job.id} counts {job.living} living workers and has {len(alive)}")
    if not job.reason:
        found.append(f"{job.id} is {job.state} for no reason")
    if job.restarts > limits.max_restarts:
        found.append(f"{job.id} was restarted {job.restarts} times, allowed are {limits.max_restarts}")
    worst = max(job.restarts_by_rank.values(), default=0)
    if worst > limits.max_restarts_per_worker:
        found.append(f"{job.id}: one rank caused {worst} restarts")
    if len(set(job.spares)) != len(job.spares) or len(job.spares) > (0 if job.ended else job.spec.standby):
        found.append(f"{job.id} has the spare places {job.spares}")
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
    if job.state is JobState.STARTING and not any(w.state is WorkerState.ASSIGNED for w in job.workers):
        found.append(f"{job.id} is starting and every rank has had a process")
    if any(w.state is WorkerState.ASSIGNED for w in alive) and job.state is not JobState.STARTING:
        found.append(f"{job.id} is {job.state} and has workers that nobody starts")
    return found
