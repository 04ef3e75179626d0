"""Whose events count: an agent speaks for its own node only, and only the weaver that leads judges. Pure.

One agent's credential must not be enough to close another node's effects or to speak for its workers. The bus
keeps agents to their own subjects; that an event's content belongs to the subject's node is checked here.
A weaver that was suspended does not know that it was replaced, and its judgement is out of date. The stream
has the order: after a LeaseTaken only its weaver is believed. What a person says counts through any weaver.
"""

from __future__ import annotations

from torchloom.model.events import (
    AgentFlooded,
    ChangeShared,
    CheckpointFailed,
    CheckpointRejected,
    CheckpointSaved,
    CheckpointStoreOpened,
    ControlDisturbed,
    DeviceHealthReported,
    DeviceTested,
    DeviceWearReported,
    EffectDone,
    EffectFailed,
    Envelope,
    Event,
    FindingEnded,
    FindingMade,
    FirstStep,
    NodeGone,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    NodeReachable,
    NodeUnreachable,
    PaceMeasured,
    RanksAnswered,
    RendezvousLost,
    RendezvousStarted,
    ReplicaLinksReported,
    ReplicasMeasured,
    RestoreDiffered,
    ScriptFailed,
    SnapshotVerified,
    StoreValuesIgnored,
    WitnessAnswered,
    WorkerExited,
    WorkerRegistered,
    WorkersStarted,
)
from torchloom.model.fleet import Fleet

_RESULTS = RendezvousStarted | WorkersStarted | ChangeShared | EffectDone | EffectFailed | DeviceTested
_OF_A_WORKER = (
    WorkerRegistered
    | FirstStep
    | WorkerExited
    | ScriptFailed
    | CheckpointStoreOpened
    | CheckpointSaved
    | CheckpointFailed
    | CheckpointRejected
    | RestoreDiffered
    | StoreValuesIgnored
)
_OF_AN_AGENT = (
    _RESULTS
    | _OF_A_WORKER
    | NodeJoined
    | NodeLeaving
    | NodeLeft
    | RanksAnswered
    | RendezvousLost
    | ReplicaLinksReported
    | DeviceHealthReported
    | DeviceWearReported
)


def is_of_an_agent(event: Event, node: str) -> bool:
    """Whether the agent of `node` may append this event at all."""
    return isinstance(event, _OF_AN_AGENT) and event.node == node


def speaks_for_another_node(fleet: Fleet, event: Event) -> bool:
    """Whether an agent reports the result of another node's effect, or about another node's worker or
    lighthouse."""
    if isinstance(event, ReplicaLinksReported):
        mine = fleet.jobs.get(event.job)
        seat = mine.spec.replica if mine is not None else None
        place = fleet.lighthouses.get(seat.set) if seat is not None else None
        return place is None or place.node != event.node
    if isinstance(event, _RESULTS):
        effect = fleet.outbox.get(event.effect)
        return effect is not None and effect.node != event.node
    if isinstance(event, _OF_A_WORKER):
        job = fleet.jobs.get(event.ref.job)
        if job is None or not 0 <= event.ref.rank < len(job.workers):
            return False
        worker = job.workers[event.ref.rank]
        return worker.ref == event.ref and worker.node != event.node
    return False


def is_of_a_deposed_weaver(fleet: Fleet, envelope: Envelope) -> bool:
    """Whether a weaver that does not lead any more says this from what it has seen."""
    match envelope.body:
        case NodeUnreachable() | NodeReachable() | FindingMade() | FindingEnded() | PaceMeasured():
            pass
        case (
            ReplicasMeasured() | SnapshotVerified() | WitnessAnswered() | ControlDisturbed() | AgentFlooded()
        ):
            pass
        case NodeGone(fenced=fenced) if fenced:
            pass
        case _:
            return False
    return fleet.leader not in ("", envelope.source)
