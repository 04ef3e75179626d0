"""Tells what an event changed, by looking at the fleet before and after it. Changes nothing itself.

Looks only at jobs that the event can concern: its own, those on its node, and those that wait for room.
"""

from __future__ import annotations

from typing import assert_never

from torchloom.core.nodes.joining import is_of_another_session
from torchloom.core.nodes.leading import is_of_a_deposed_weaver
from torchloom.core.reducer import apply
from torchloom.core.steering.operations import asked, sentence
from torchloom.model.events import (
    ChangeCancelled,
    ChangeRequested,
    CheckpointFailed,
    CheckpointRejected,
    CheckpointSaved,
    CheckpointStoreOpened,
    Decided,
    EffectDone,
    EffectFailed,
    Envelope,
    Event,
    FaultInjected,
    FindingEnded,
    FindingMade,
    FirstStep,
    JobDeleted,
    JobSubmitted,
    LeaseTaken,
    NodeDrained,
    NodeGone,
    NodeJoined,
    NodeLeft,
    NodeReachable,
    NodeUnreachable,
    RanksAnswered,
    RestoreRequested,
    ScaleRequested,
    ScriptFailed,
    StepReached,
    StopRequested,
    StoreLost,
    StoreStarted,
    TimerFired,
    WorkerExited,
    WorkerRegistered,
    WorkersStarted,
)
from torchloom.model.fleet import Fleet
from torchloom.model.incidents import Incident
from torchloom.model.notice import IncidentChange, JobChange, Notice, Topic


def apply_and_tell(fleet: Fleet, envelope: Envelope, seq: int, now_ns: int) -> Notice | None:
    """Apply one event of the stream, exactly as `apply` does, and put into words what came of it.

    None for an event that was applied before, or that is not believed: nothing happened.
    """
    event = envelope.body
    no_news = seq <= fleet.seq or envelope.id in fleet.seen
    no_news = no_news or is_of_a_deposed_weaver(fleet, envelope) or is_of_another_session(fleet, envelope)
    job = job_of(event, fleet)
    near = _near(fleet, event, job)
    jobs, incidents = _jobs(fleet, near), _incidents(fleet, near)
    under_way = _operations_under_way(fleet, job)
    apply(fleet, envelope, seq, now_ns)
    if no_news:
        return None
    if job:
        near.setdefault(job)
    changed = [change for change in _jobs(fleet, near).values() if jobs.get(change.id) != change]
    found = [i for i in _incidents(fleet, near).values() if incidents.get(i.id) != i]
    kind, (topic, text) = str(event.__struct_config__.tag), _words(event)
    if isinstance(event, NodeJoined) and fleet.nodes[event.node].session != event.session:
        kind, text = (
            "node-refused",
            f"{event.inventory.hostname} did not get the name {event.node}: it is taken",
        )
    more: list[Topic] = ["job"] if changed and topic != "job" else []
    told = _operations_told(fleet, job, under_way, event)
    if told:
        text = told if topic == "system" else f"{text}; {told}"
        topic, more = ("config", more) if topic == "system" else (topic, [*more, "config"])
    if found:
        more.append("incident")
    ref = getattr(event, "ref", None)
    return Notice(
        seq=seq,
        at_ns=now_ns,
        kind=kind,
        topics=(topic, *more),
        text=text,
        job=job,
        node=str(getattr(event, "node", "")),
        rank=None if ref is None else ref.rank,
        by=str(getattr(event, "by", "")),
        jobs=tuple(changed),
        incidents=tuple(found),
    )


def job_of(event: Event, fleet: Fleet) -> str:
    """The job that an event is about, if it is about one."""
    match event:
        case JobSubmitted() | StopRequested() | RestoreRequested() | JobDeleted() | FaultInjected():
            return event.job
        case ScaleRequested():
            return event.job
        case ChangeRequested() | ChangeCancelled() | RanksAnswered() | StepReached():
            return event.job
        case WorkerRegistered() | FirstStep() | WorkerExited() | ScriptFailed():
            return event.ref.job
        case CheckpointStoreOpened() | CheckpointSaved() | CheckpointFailed() | CheckpointRejected():
            return event.ref.job
        case StoreStarted() | StoreLost():
            return event.store.job
        case FindingMade() | FindingEnded():
            return event.job
        case WorkersStarted():
            return event.workers[0].ref.job if event.workers else ""
        case TimerFired():
            timer = fleet.timers.get(event.timer)
            return timer.job if timer is not None else ""
        case EffectFailed() | EffectDone():
            return next((job for job, open_ in fleet.open_by_job.items() if event.effect in open_), "")
        case NodeJoined() | NodeUnreachable() | NodeReachable() | NodeLeft() | NodeGone() | NodeDrained():
            return ""
        case LeaseTaken() | Decided():
            return ""
        case _:
            assert_never(event)


def _near(fleet: Fleet, event: Event, job: str) -> dict[str, None]:
    if isinstance(event, Decided | LeaseTaken):
        return {}
    near = dict.fromkeys(fleet.waiting)
    if job:
        near[job] = None
    if isinstance(event, NodeJoined | NodeLeft | NodeUnreachable | NodeReachable | NodeGone):
        node = fleet.nodes.get(event.node)
        near |= dict.fromkeys((*node.jobs, *node.stores) if node is not None else ())
    return near


def _jobs(fleet: Fleet, near: dict[str, None]) -> dict[str, JobChange]:
    found = (fleet.jobs.get(job) for job in near)
    return {j.id: JobChange(j.id, str(j.state), j.reason, j.generation) for j in found if j is not None}


def _incidents(fleet: Fleet, near: dict[str, None]) -> dict[str, IncidentChange]:
    made = {}
    for name in near:
        job = fleet.jobs.get(name)
        if job is None:
            continue
        for id in dict.fromkeys((*job.findings.values(), *job.incidents[-2:])):
            i = fleet.incidents.get(id)
            if i is not None:
                made[id] = _incident(i)
    return made


def _incident(incident: Incident) -> IncidentChange:
    decided = incident.decided
    return IncidentChange(
        id=incident.id,
        job=incident.job,
        kind=incident.kind,
        verdict=incident.verdict,
        decision=incident.decision,
        open=incident.open,
        resolution=incident.resolution,
        action=decided.action if decided is not None else "",
        outcome=decided.outcome if decided is not None else "",
    )


def _operations_under_way(fleet: Fleet, job: str) -> list[str]:
    known = fleet.jobs.get(job)
    return [o.id for o in known.operations.values() if not o.ended] if known is not None else []


def _operations_told(fleet: Fleet, job: str, under_way: list[str], event: Event) -> str:
    """The outcomes that this event brought, in words."""
    known = fleet.jobs.get(job)
    if known is None:
        return ""
    new = [event.operation] if isinstance(event, ChangeRequested) else []
    found = [known.operations.get(id) for id in dict.fromkeys([*under_way, *new])]
    return "; ".join(sentence(job, o) for o in found if o is not None and o.ended)


def _words(event: Event) -> tuple[Topic, str]:
    match event:
        case ChangeRequested():
            return "config", f"{event.by} asked {event.job} to {asked(event.kind, event.values)}"
        case ChangeCancelled():
            return "config", f"{event.by} cancelled operation {event.operation} of {event.job}"
        case RanksAnswered():
            return "system", f"ranks of {event.job} on {event.node} answered"
        case StepReached():
            return "system", f"{event.job} is near step {event.step}"
        case JobSubmitted():
            return "job", f"{event.by} submitted {event.job} with {event.spec.world_size} workers"
        case StopRequested():
            return "job", f"{event.by} asked {event.job} to stop" + (" at once" if event.kill else "")
        case RestoreRequested():
            return "job", f"{event.by} asked {event.job} to go back to step {event.step}"
        case ScaleRequested():
            return "job", f"{event.by} asked for {event.workers} workers of {event.job}"
        case JobDeleted():
            return "job", f"{event.by} deleted {event.job}"
        case NodeJoined():
            return "node", f"{event.node} joined with {len(event.inventory.workers)} running workers"
        case NodeUnreachable():
            return "node", f"{event.node} has been silent for {event.silent_s:.1f} s"
        case NodeReachable():
            return "node", f"{event.node} is reachable again"
        case NodeLeft():
            return "node", f"the agent of {event.node} was stopped"
        case NodeDrained():
            what = "is open for workers again" if event.open else "is drained"
            if event.move:
                what += ", and its jobs are to leave it"
            return "node", f"{event.node} {what}, by {event.by}" + (f": {event.why}" if event.why else "")
        case NodeGone() if event.fenced:
            return "node", f"{event.node} has ended its workers of {', '.join(event.fenced)} by now"
        case NodeGone():
            return "node", f"{event.by} confirmed that the host of {event.node} is gone"
        case StoreStarted():
            return "system", f"the store of {event.store.job} is up on {event.node}"
        case StoreLost():
            return "worker", f"the store of {event.store.job} on {event.node} {event.exit.describe()}"
        case WorkersStarted():
            return "worker", f"{len(event.workers)} workers were started on {event.node}"
        case EffectFailed():
            return "system", f"{event.node} could not carry out a command: {event.why}"
        case EffectDone():
            return "system", f"{event.node} carried out a command"
        case WorkerRegistered():
            names = ", ".join(device.device for device in event.devices)
            return "device", f"rank {event.ref.rank} of {event.ref.job} uses {names or 'no device'}"
        case FirstStep():
            did = "paused before its first step" if event.paused else "completed its first step"
            return "worker", f"rank {event.ref.rank} of {event.ref.job} {did}"
        case WorkerExited():
            return "worker", f"rank {event.ref.rank} of {event.ref.job} {event.exit.describe()}"
        case ScriptFailed():
            how = event.end.exception or f"code {event.end.code}"
            return "worker", f"the script of rank {event.ref.rank} of {event.ref.job} failed with {how}"
        case CheckpointStoreOpened():
            if event.restored:
                return "worker", f"{event.ref.job} resumed from {event.restored}, from {event.restored_from}"
            return "worker", f"{event.ref.job} found no checkpoint and begins from nothing"
        case CheckpointSaved():
            return "worker", f"{event.ref.job} saved step {event.saved.step}"
        case CheckpointFailed():
            return "worker", f"rank {event.ref.rank} of {event.ref.job} could not save step {event.step}"
        case CheckpointRejected():
            names = ", ".join(one.name for one in event.rejected)
            return "worker", f"{event.ref.job} passed over damaged checkpoints: {names}"
        case FaultInjected():
            ranks = ", ".join(map(str, event.ranks))
            return "job", f"{event.by} injected {event.fault.kind} into rank {ranks} of {event.job}"
        case FindingMade():
            return "incident", f"{event.job}: {event.finding.sentence}"
        case FindingEnded():
            return "incident", f"{event.job}: resolved after {event.lasted_s:.1f} s"
        case TimerFired():
            return "system", "a wait is over"
        case LeaseTaken():
            return "system", f"{event.weaver} leads with epoch {event.epoch}"
        case Decided():
            return "system", "; ".join(dict.fromkeys(effect.reason for effect in event.effects))
        case _:
            assert_never(event)
