"""Nodes come, fall silent and come back. Unreachable is not dead: only proof ends a worker here."""

from __future__ import annotations

from torchloom.core.ending import worker_exited
from torchloom.core.generation import find_worker, retry_waiting
from torchloom.core.lifecycle import move_worker
from torchloom.core.turn import Turn
from torchloom.model.effects import StartWorkers, StopStore, StopWorkers
from torchloom.model.events import NodeJoined, NodeLeft, NodeReachable, NodeUnreachable, WorkerExited
from torchloom.model.fleet import Node, NodeState, Worker, WorkerState
from torchloom.model.node import StoreRef
from torchloom.model.worker import Exit, WorkerRef


def node_joined(turn: Turn, event: NodeJoined) -> None:
    """Bring our picture of the node in line with what its agent sees."""
    known = turn.fleet.nodes.get(event.node)
    rebooted = known is not None and known.inventory.boot_id != event.inventory.boot_id
    turn.fleet.nodes[event.node] = Node(
        id=event.node,
        session=event.session,
        state=NodeState.READY,
        inventory=event.inventory,
        joined_at_ns=known.joined_at_ns if known is not None else turn.now_ns,
        reason="its host was rebooted" if rebooted else "",
    )
    _confirm_living(turn, event)
    _miss_absent(turn, event, rebooted)
    _end_orphans(turn, event)
    retry_waiting(turn)


def _confirm_living(turn: Turn, event: NodeJoined) -> None:
    for live in event.inventory.workers:
        worker = find_worker(turn.fleet, live.ref)
        if worker is not None and worker.alive:
            worker.pid = live.pid
            worker.devices = live.devices or worker.devices


def _miss_absent(turn: Turn, event: NodeJoined, rebooted: bool) -> None:
    """Workers we believed in and the agent does not know are gone, and nobody saw how."""
    told = {live.ref for live in event.inventory.workers} | set(event.inventory.exits_to_come)
    why = "its host was rebooted" if rebooted else "the agent found neither its process nor its black box"
    for worker in _workers_on(turn, event.node):
        if worker.ref in told or _start_is_open(turn, worker):
            continue
        gone = WorkerExited(
            node=event.node,
            ref=worker.ref,
            exit=Exit(None, None, "inventory"),
            at_ns=turn.now_ns,
            steps=worker.steps,
            activity=f"last seen before {why}" if rebooted else f"lost: {why}",
        )
        worker_exited(turn, gone)


def _end_orphans(turn: Turn, event: NodeJoined) -> None:
    """Processes of generations that are over, left from a time when nobody could tell them."""
    orphans = []
    for live in event.inventory.workers:
        worker = find_worker(turn.fleet, live.ref)
        if worker is None or not worker.alive:
            orphans.append(live.ref)
        elif worker.state is WorkerState.ASSIGNED:
            move_worker(worker, WorkerState.RUNNING)
    if orphans and not _stop_is_open(turn, set(orphans)):
        turn.want(
            StopWorkers(
                id=turn.next_effect_id(),
                cause=turn.seq,
                reason="these workers belong to a generation that is over",
                node=event.node,
                workers=tuple(orphans),
            )
        )
    for store in event.inventory.stores:
        if not _store_wanted(turn, store):
            turn.want(
                StopStore(
                    id=turn.next_effect_id(),
                    cause=turn.seq,
                    reason="this store belongs to a generation that is over",
                    node=event.node,
                    store=store,
                )
            )


def node_unreachable(turn: Turn, event: NodeUnreachable) -> None:
    node = turn.fleet.nodes.get(event.node)
    if node is None or node.state is not NodeState.READY:
        return
    node.state = NodeState.UNREACHABLE
    busy = len(_workers_on(turn, event.node))
    node.reason = (
        f"silent for {event.silent_s:.1f} s; that may be the way to it, so its {busy} workers are left alone"
    )


def node_reachable(turn: Turn, event: NodeReachable) -> None:
    node = turn.fleet.nodes.get(event.node)
    if node is not None and node.state is NodeState.UNREACHABLE:
        node.state, node.reason = NodeState.READY, "heard again"
        retry_waiting(turn)


def node_left(turn: Turn, event: NodeLeft) -> None:
    node = turn.fleet.nodes.get(event.node)
    if node is not None:
        node.state, node.reason = NodeState.LEFT, "its agent was stopped; workers, if any, go on"


def _workers_on(turn: Turn, node: str) -> list[Worker]:
    return [w for job in turn.fleet.jobs.values() for w in job.workers if w.node == node and w.alive]


def _start_is_open(turn: Turn, worker: Worker) -> bool:
    return any(
        isinstance(effect, StartWorkers) and any(start.ref == worker.ref for start in effect.launches)
        for effect in turn.fleet.outbox.values()
    )


def _stop_is_open(turn: Turn, refs: set[WorkerRef]) -> bool:
    return any(isinstance(e, StopWorkers) and refs <= set(e.workers) for e in turn.fleet.outbox.values())


def _store_wanted(turn: Turn, store: StoreRef) -> bool:
    """Wanted by a living generation, or already being stopped."""
    job = turn.fleet.jobs.get(store.job)
    if job is not None and not job.ended and store.generation == job.store_generation:
        return True
    return any(isinstance(e, StopStore) and e.store == store for e in turn.fleet.outbox.values())
