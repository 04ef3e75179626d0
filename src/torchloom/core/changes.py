"""What one event changed: the fleet before and after it, compared. Says nothing about it in words.

Looks only at jobs that the event can concern: its own, those on its node, and those that wait for room.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import assert_never

from msgspec import Struct

from torchloom.core.nodes.name_owner import is_of_another_session
from torchloom.core.nodes.speaking import is_of_a_deposed_weaver
from torchloom.core.reducer import apply
from torchloom.model.effects import Effect
from torchloom.model.events import (
    AgentFlooded,
    ChangeCancelled,
    ChangeRequested,
    ChangeShared,
    CheckpointFailed,
    CheckpointRejected,
    CheckpointSaved,
    CheckpointStoreOpened,
    ControlDisturbed,
    Decided,
    DeviceHealthReported,
    DeviceMarked,
    DevicePolicySet,
    DeviceTested,
    DeviceTestRequested,
    DeviceTestsImported,
    DeviceWearReported,
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
    JoinTokenMade,
    LeaseTaken,
    NodeAdmitted,
    NodeDrained,
    NodeGone,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    NodeReachable,
    NodeRevoked,
    NodeUnreachable,
    PaceMeasured,
    RanksAnswered,
    RendezvousLost,
    RendezvousStarted,
    ReplicaLinksReported,
    ReplicasMeasured,
    RestartRequested,
    RestoreDiffered,
    RestoreRequested,
    ScaleRequested,
    ScriptFailed,
    SnapshotVerified,
    StepReached,
    StopRequested,
    StoreValuesIgnored,
    TimerFired,
    WitnessAnswered,
    WorkerExited,
    WorkerRegistered,
    WorkersStarted,
)
from torchloom.model.fleet import Fleet
from torchloom.model.incidents import Incident
from torchloom.model.notice import IncidentChange, JobChange
from torchloom.model.steering import OperationRecord


class Change(Struct, frozen=True, kw_only=True):
    """One event, and what came of it."""

    seq: int
    at_ns: int
    event: Event
    job: str
    """The job that it is about, if it is about one."""
    refused: bool = False
    """A host asked for the name of a node and did not get it."""
    jobs: tuple[JobChange, ...] = ()
    incidents: tuple[IncidentChange, ...] = ()
    operations: tuple[OperationRecord, ...] = ()
    """Those that ended."""
    effects: tuple[Effect, ...] = ()
    """What the core asked for."""


def apply_and_compare(fleet: Fleet, envelope: Envelope, seq: int, now_ns: int) -> Change | None:
    """Apply one event of the stream, exactly as `apply` does, and return what it changed.

    None for an event that was applied before, or that is not believed: nothing happened.
    """
    event = envelope.body
    no_news = seq <= fleet.seq or envelope.id in fleet.seen
    no_news = no_news or is_of_a_deposed_weaver(fleet, envelope) or is_of_another_session(fleet, envelope)
    job = job_of(event, fleet)
    near = _near(fleet, event, job)
    jobs, incidents = _jobs(fleet, near), _incidents(fleet, near)
    under_way = _operations_under_way(fleet, job)
    effects = apply(fleet, envelope, seq, now_ns)
    if no_news:
        return None
    if job:
        near.setdefault(job)
    return Change(
        seq=seq,
        at_ns=now_ns,
        event=event,
        job=job,
        refused=isinstance(event, NodeJoined) and fleet.nodes[event.node].session != event.session,
        jobs=tuple(change for change in _jobs(fleet, near).values() if jobs.get(change.id) != change),
        incidents=tuple(
            _incident(fleet.incidents[id])
            for id, now in _incidents(fleet, near, incidents).items()
            if incidents.get(id) != now
        ),
        operations=_operations_ended(fleet, job, under_way, event),
        effects=tuple(effects),
    )


def job_of(event: Event, fleet: Fleet) -> str:
    """The job that an event is about, if it is about one."""
    match event:
        case JobSubmitted() | StopRequested() | RestoreRequested() | JobDeleted() | FaultInjected():
            return event.job
        case ScaleRequested() | RestartRequested():
            return event.job
        case ChangeRequested() | ChangeCancelled() | RanksAnswered() | StepReached():
            return event.job
        case WorkerRegistered() | FirstStep() | WorkerExited() | ScriptFailed():
            return event.ref.job
        case CheckpointStoreOpened() | CheckpointSaved() | CheckpointFailed() | CheckpointRejected():
            return event.ref.job
        case RestoreDiffered() | StoreValuesIgnored():
            return event.ref.job
        case RendezvousStarted() | RendezvousLost():
            return event.store.job
        case FindingMade() | FindingEnded() | PaceMeasured() | ReplicasMeasured() | WitnessAnswered():
            return event.job
        case ReplicaLinksReported():
            return event.job
        case WorkersStarted():
            return event.workers[0].ref.job if event.workers else ""
        case TimerFired():
            timer = fleet.timers.get(event.timer)
            return timer.job if timer is not None else ""
        case EffectFailed() | EffectDone() | ChangeShared():
            return next((job for job, open_ in fleet.open_by_job.items() if event.effect in open_), "")
        case NodeJoined() | NodeUnreachable() | NodeReachable() | NodeLeft() | NodeGone() | NodeDrained():
            return ""
        case NodeLeaving():
            return ""
        case DeviceMarked() | DeviceHealthReported() | DevicePolicySet():
            return ""
        case DeviceWearReported() | DeviceTestRequested() | DeviceTested() | DeviceTestsImported():
            return ""
        case JoinTokenMade() | NodeAdmitted() | NodeRevoked():
            return ""
        case LeaseTaken() | SnapshotVerified() | ControlDisturbed() | AgentFlooded() | Decided():
            return ""
        case _:
            assert_never(event)


def _near(fleet: Fleet, event: Event, job: str) -> dict[str, None]:
    if isinstance(event, Decided | LeaseTaken | SnapshotVerified | ControlDisturbed | AgentFlooded):
        return {}
    near = dict.fromkeys((*fleet.waiting, *fleet.leaving, *fleet.acting))
    if job:
        near[job] = None
    if isinstance(event, DeviceMarked | DeviceHealthReported | DeviceWearReported | DeviceTested):
        node = fleet.nodes.get(event.node)
        near |= dict.fromkeys(node.jobs if node is not None else ())
    if isinstance(event, DeviceTestsImported):
        tested = (fleet.devices.get(one.device) for one in event.results)
        homes = {device.node for device in tested if device is not None}
        near |= dict.fromkeys(name for home in sorted(homes) for name in fleet.nodes[home].jobs)
    if isinstance(
        event,
        NodeJoined | NodeLeft | NodeLeaving | NodeUnreachable | NodeReachable | NodeGone | NodeDrained,
    ):
        node = fleet.nodes.get(event.node)
        near |= dict.fromkeys((*node.jobs, *node.stores) if node is not None else ())
        # Also those that have no worker there any more, but an incident about its silence.
        near |= dict.fromkeys(name for name, one in fleet.jobs.items() if event.node in one.silent)
    return near


def _jobs(fleet: Fleet, near: dict[str, None]) -> dict[str, JobChange]:
    found = (fleet.jobs.get(job) for job in near)
    return {j.id: JobChange(j.id, str(j.state), j.reason, j.generation) for j in found if j is not None}


def _incidents(
    fleet: Fleet, near: dict[str, None], before: Collection[str] = ()
) -> dict[str, tuple[object, ...]]:
    """Those of the jobs that are open, or were `before`, and the newest, which may still be put in words. Of
    each the records that its words are made of: hundreds may be open, and few of them change."""
    made: dict[str, tuple[object, ...]] = {}
    for name in near:
        job = fleet.jobs.get(name)
        if job is None:
            continue
        newest = job.incidents[-2:]
        for id in dict.fromkeys((*job.findings.values(), *job.incidents)):
            i = fleet.incidents.get(id)
            if i is not None and (i.open or id in newest or id in before):
                made[id] = (i.open, i.kind, i.judged, i.decided, i.witness, i.ending)
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


def _operations_ended(
    fleet: Fleet, job: str, under_way: list[str], event: Event
) -> tuple[OperationRecord, ...]:
    known = fleet.jobs.get(job)
    if known is None:
        return ()
    new = [event.operation] if isinstance(event, ChangeRequested) else []
    found = [known.operations.get(id) for id in dict.fromkeys([*under_way, *new])]
    return tuple(o for o in found if o is not None and o.ended)
