"""What an agent may say: events of its own kinds, about its own node's effects and workers. Pure.

One agent's credential must not be enough to close another node's effects or to speak for its workers. The bus
keeps agents to their own subjects; that an event's content belongs to the subject's node is checked here.
"""

from __future__ import annotations

from torchloom.model.events import (
    CheckpointFailed,
    CheckpointRejected,
    CheckpointSaved,
    CheckpointStoreOpened,
    EffectDone,
    EffectFailed,
    Event,
    FirstStep,
    NodeJoined,
    NodeLeft,
    RanksAnswered,
    RendezvousLost,
    RendezvousStarted,
    ScriptFailed,
    WorkerExited,
    WorkerRegistered,
    WorkersStarted,
)
from torchloom.model.fleet import Fleet

_RESULTS = RendezvousStarted | WorkersStarted | EffectDone | EffectFailed
_OF_A_WORKER = (
    WorkerRegistered
    | FirstStep
    | WorkerExited
    | ScriptFailed
    | CheckpointStoreOpened
    | CheckpointSaved
    | CheckpointFailed
    | CheckpointRejected
)
_OF_AN_AGENT = _RESULTS | _OF_A_WORKER | NodeJoined | NodeLeft | RanksAnswered | RendezvousLost


def is_of_an_agent(event: Event, node: str) -> bool:
    """Whether the agent of `node` may append this event at all."""
    return isinstance(event, _OF_AN_AGENT) and event.node == node


def speaks_for_another_node(fleet: Fleet, event: Event) -> bool:
    """Whether an agent reports the result of another node's effect, or about another node's worker."""
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
