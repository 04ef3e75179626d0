"""The heart: apply one event to the fleet and return the effects it leads to."""

from __future__ import annotations

from typing import assert_never

from torchloom.core.ending import start_failed, worker_exited
from torchloom.core.generation import (
    find_worker,
    retry_waiting,
    start_generation,
    store_started,
    workers_started,
)
from torchloom.core.nodes import node_joined, node_left, node_reachable, node_unreachable
from torchloom.core.stopping import stop_requested
from torchloom.core.turn import Turn
from torchloom.model.effects import Effect, StartStore, StartWorkers
from torchloom.model.events import (
    Decided,
    EffectDone,
    EffectFailed,
    Envelope,
    Event,
    FirstStep,
    JobDeleted,
    JobSubmitted,
    LeaseTaken,
    NodeJoined,
    NodeLeft,
    NodeReachable,
    NodeUnreachable,
    StopRequested,
    StoreLost,
    StoreStarted,
    TimerFired,
    WorkerExited,
    WorkerRegistered,
    WorkersStarted,
)
from torchloom.model.fleet import Fleet, Incident, Job, JobState, Timeline

REMEMBERED_EVENTS = 4096


def apply(fleet: Fleet, envelope: Envelope, seq: int, now_ns: int) -> list[Effect]:
    """Change `fleet` by one event of the stream. An event that was applied before changes nothing."""
    if seq <= fleet.seq:
        return []
    fleet.seq = seq
    fleet.now_ns = max(fleet.now_ns, now_ns)
    if envelope.id in fleet.seen:
        return []
    fleet.seen[envelope.id] = None
    if len(fleet.seen) > REMEMBERED_EVENTS:
        del fleet.seen[next(iter(fleet.seen))]
    turn = Turn(fleet, seq, fleet.now_ns, envelope.id)
    _dispatch(turn, envelope.body)
    return list(turn.effects)


def _dispatch(turn: Turn, event: Event) -> None:
    match event:
        case JobSubmitted():
            _job_submitted(turn, event)
        case StopRequested():
            stop_requested(turn, event)
            retry_waiting(turn)
        case JobDeleted():
            _job_deleted(turn, event)
        case NodeJoined():
            node_joined(turn, event)
        case NodeUnreachable():
            node_unreachable(turn, event)
        case NodeReachable():
            node_reachable(turn, event)
        case NodeLeft():
            node_left(turn, event)
        case StoreStarted():
            store_started(turn, event)
        case StoreLost():
            _store_lost(turn, event)
        case WorkersStarted():
            workers_started(turn, event)
        case EffectFailed():
            _effect_failed(turn, event)
        case EffectDone():
            turn.close(event.effect)
        case WorkerRegistered():
            worker = find_worker(turn.fleet, event.ref)
            if worker is not None:
                worker.devices = event.devices
        case FirstStep():
            _first_step(turn, event)
        case WorkerExited():
            worker_exited(turn, event)
            retry_waiting(turn)
        case TimerFired():
            _timer_fired(turn, event)
        case LeaseTaken():
            turn.fleet.epoch, turn.fleet.leader = event.epoch, event.weaver
        case Decided():
            pass
        case _:
            assert_never(event)


def _job_submitted(turn: Turn, event: JobSubmitted) -> None:
    if event.job in turn.fleet.jobs:
        return
    job = Job(
        id=event.job,
        spec=event.spec,
        by=event.by,
        state=JobState.WAITING,
        reason="submitted",
        submitted_at_ns=turn.now_ns,
    )
    turn.fleet.jobs[job.id] = job
    start_generation(turn, job, f"submitted by {event.by}")


def _job_deleted(turn: Turn, event: JobDeleted) -> None:
    job = turn.fleet.jobs.get(event.job)
    if job is not None and job.ended:
        for incident in job.incidents:
            turn.fleet.incidents.pop(incident, None)
        del turn.fleet.jobs[event.job]


def _store_lost(turn: Turn, event: StoreLost) -> None:
    """A running job does not need its store, so it is left alone; a starting one has to begin anew."""
    job = turn.fleet.jobs.get(event.store.job)
    if job is None or job.ended or job.store_generation != event.store.generation:
        return
    job.store, job.store_generation = None, 0
    if job.state is JobState.STARTING and job.generation == event.store.generation:
        refs = {w.ref for w in job.workers}
        start_failed(turn, job, refs, f"the store of its generation {event.exit.describe()}")
    elif job.state is JobState.RUNNING:
        incident = Incident(
            id=f"{job.id}.{len(job.incidents) + 1}",
            job=job.id,
            generation=job.generation,
            kind="store-lost",
            verdict=f"the c10d store on {event.node} {event.exit.describe()}; training goes on, "
            "but new process groups cannot be made until the next restart",
            decision="nothing is restarted, because the workers are healthy",
            timeline=Timeline(fault_ns=turn.now_ns, detected_ns=turn.now_ns, decided_ns=turn.now_ns),
            open=False,
        )
        turn.fleet.incidents[incident.id] = incident
        job.incidents.append(incident.id)


def _effect_failed(turn: Turn, event: EffectFailed) -> None:
    effect = turn.fleet.outbox.get(event.effect)
    if effect is None:
        return
    turn.close(event.effect)
    if isinstance(effect, StartWorkers):
        job = turn.fleet.jobs.get(effect.job)
        if job is not None and job.generation == effect.generation:
            start_failed(turn, job, {start.ref for start in effect.launches}, event.why)
    elif isinstance(effect, StartStore):
        job = turn.fleet.jobs.get(effect.store.job)
        if job is not None and job.store_generation == effect.store.generation:
            job.store_generation = 0
            if job.state is JobState.STARTING:
                start_failed(turn, job, {w.ref for w in job.workers}, event.why)


def _first_step(turn: Turn, event: FirstStep) -> None:
    worker = find_worker(turn.fleet, event.ref)
    if worker is None or worker.first_step_at_ns:
        return
    worker.first_step_at_ns = event.at_ns
    job = turn.fleet.jobs[event.ref.job]
    incident = turn.fleet.incidents.get(job.incident)
    if incident is None or not incident.open or incident.generation >= event.ref.generation:
        return
    incident.open = False
    job.incident = ""
    incident.timeline.first_step_ns = event.at_ns
    job.down_ns += max(0, event.at_ns - incident.timeline.fault_ns)
    reached = [r.training_step for r in incident.exits if r.training_step is not None]
    if reached and event.training_step is not None:
        incident.lost_steps = max(0, max(reached) - event.training_step + 1)


def _timer_fired(turn: Turn, event: TimerFired) -> None:
    timer = turn.fleet.timers.pop(event.timer, None)
    job = turn.fleet.jobs.get(timer.job) if timer is not None else None
    if job is not None and job.state is JobState.BACKOFF:
        start_generation(turn, job, f"the wait is over: {job.reason}")
