"""Nodes come, fall silent and come back. Unreachable is not dead: only proof ends a worker here."""

from __future__ import annotations

from collections.abc import Iterable

from torchloom.core.devices.registry import devices_gone, devices_listed
from torchloom.core.nodes.lost_nodes import HEARD, lose_workers, say_heard, say_silent
from torchloom.core.nodes.name_owner import change_of, other_claims, refused
from torchloom.core.placement.drain import drain_jobs, leave_host
from torchloom.core.placement.lighthouses import node_lost
from torchloom.core.recovery.generation_end import rendezvous_lost_at_start, start_did_fail, worker_exited
from torchloom.core.recovery.generation_start import (
    close_done_starts,
    end_strays,
    find_worker,
    forget_rendezvous,
    holds_rendezvous,
    process_exists,
    settle_start,
)
from torchloom.core.recovery.incidents import open_incident
from torchloom.core.turn import Turn
from torchloom.model.effects import StopRendezvous, StopWorkers
from torchloom.model.events import (
    NodeDrained,
    NodeGone,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    NodeReachable,
    NodeUnreachable,
    RendezvousLost,
    WorkerExited,
)
from torchloom.model.fleet import Drain, JobState, Node, NodeState, Worker, WorkerState
from torchloom.model.incidents import Decision, DecisionOutcome
from torchloom.model.node import RendezvousRef
from torchloom.model.worker import Exit, WorkerRef


def node_joined(turn: Turn, event: NodeJoined) -> None:
    """Bring our picture of the node in line with what its agent sees."""
    if refused(turn, event):
        return
    known = turn.fleet.nodes.get(event.node)
    change = change_of(known, event.inventory)
    turn.fleet.nodes[event.node] = Node(
        id=event.node,
        session=event.session,
        state=NodeState.READY,
        inventory=event.inventory,
        joined_at_ns=known.joined_at_ns if known is not None else turn.now_ns,
        reason=change,
        jobs=known.jobs if known is not None else {},
        taken=known.taken if known is not None else 0,
        stores=known.stores if known is not None else {},
        drained=_still_drained(known, event),
        ends=known.ends if known is not None and known.session == event.session else "",
        barred=known.barred if known is not None else {},
        devices=known.devices if known is not None else {},
        spare=known.spare if known is not None else {},
        lost=known.lost if known is not None else [],
        lost_stores=known.lost_stores if known is not None else [],
        claims=other_claims(known, event.inventory) if known is not None else {},
    )
    turn.room_appeared = True
    devices_listed(turn, turn.fleet.nodes[event.node])
    say_heard(turn, event.node, change or HEARD)
    _confirm_living(turn, event)
    _miss_absent(turn, event, change)
    _miss_stores(turn, event)
    _end_orphans(turn, event)


def _still_drained(known: Node | None, event: NodeJoined) -> Drain | None:
    if known is None or known.drained is None:
        return None
    return None if known.drained.until_join and known.session != event.session else known.drained


def _confirm_living(turn: Turn, event: NodeJoined) -> None:
    jobs = set()
    for live in event.inventory.workers:
        worker = find_worker(turn.fleet, live.ref, event.node)
        if worker is not None and worker.alive:
            process_exists(turn, worker, live.pid)
            worker.devices = live.devices or worker.devices
            jobs.add(live.ref.job)
    for job in sorted(jobs):
        close_done_starts(turn, turn.fleet.jobs[job])
        settle_start(turn, turn.fleet.jobs[job])


def _miss_absent(turn: Turn, event: NodeJoined, change: str) -> None:
    """Workers that we know and the agent does not are gone; how they ended was not observed.

    Not those that it has still to start or to stop: a command that was in transit when the inventory was
    made may start one yet, so only the answer to the open effect proves anything. Nor those that wait for
    their store.
    """
    told = {live.ref for live in event.inventory.workers} | set(event.inventory.exits_to_come)
    lost = "lost: the agent found neither its process nor its black box"
    being_ended = _being_ended(turn, event.node)
    for worker in _workers_on(turn, event.node):
        if worker.ref in told or worker.ref in being_ended:
            continue
        if worker.state is WorkerState.ASSIGNED or not worker.alive:
            continue
        ran_ns = turn.now_ns - worker.started_at_ns if worker.started_at_ns else 0
        gone = WorkerExited(
            node=event.node,
            ref=worker.ref,
            exit=Exit(None, None, "inventory"),
            at_ns=turn.now_ns,
            ran_s=ran_ns / 1e9,
            activity=f"last seen before {change}" if change else lost,
        )
        worker_exited(turn, gone)


def _miss_stores(turn: Turn, event: NodeJoined) -> None:
    """A store that ended while no agent was there to see it."""
    for job_id in list(turn.fleet.nodes[event.node].stores):
        store = RendezvousRef(job_id, turn.fleet.jobs[job_id].rendezvous_generation)
        if store not in event.inventory.stores:
            rendezvous_lost(
                turn, RendezvousLost(node=event.node, store=store, exit=Exit(None, None, "inventory"))
            )


def rendezvous_lost(turn: Turn, event: RendezvousLost) -> None:
    """A running job does not need its store, so it is left alone; a starting one has to begin anew."""
    job = turn.fleet.jobs.get(event.store.job)
    if job is None or not holds_rendezvous(job, event.store, event.node):
        return
    launched = job.rendezvous is not None
    forget_rendezvous(turn, job)
    what = f"the c10d store on {event.node} {event.exit.describe()}"
    if job.state is JobState.STARTING and job.generation == event.store.generation:
        if launched:
            rendezvous_lost_at_start(turn, job, f"{what} while generation {job.generation} was starting")
        else:
            start_did_fail(turn, job, {w.ref for w in job.workers}, what)
    elif job.state is JobState.RUNNING:
        consequence = "training continues, but new process groups cannot be made until the next restart"
        incident = open_incident(turn, job, "store-lost", f"{what}; {consequence}", turn.now_ns)
        reason = "nothing is restarted, because the workers are healthy"
        incident.decided = Decision(action="continue", outcome=DecisionOutcome.DONE, reason=reason)
        incident.open = False


def _end_orphans(turn: Turn, event: NodeJoined) -> None:
    """Processes of generations that are over, left over because the node could not be reached."""
    _end_lost(turn, turn.fleet.nodes[event.node])
    being_ended = _being_ended(turn, event.node)
    orphans = []
    for live in event.inventory.workers:
        worker = find_worker(turn.fleet, live.ref, event.node)
        if (worker is None or not worker.alive) and live.ref not in being_ended:
            orphans.append(live.ref)
    if orphans:
        end_strays(turn, event.node, orphans)
    _end_stores(turn, event.node, event.inventory.stores)


def _end_lost(turn: Turn, node: Node) -> None:
    """A host that was declared gone is back: workers that counted as dead must not keep running.

    Whether it still lives need not be known: an agent never starts a worker that it was asked to stop.
    """
    if node.lost:
        end_strays(turn, node.id, node.lost)
    _end_stores(turn, node.id, node.lost_stores)
    node.lost, node.lost_stores = [], []


def _end_stores(turn: Turn, node: str, stores: Iterable[RendezvousRef]) -> None:
    for store in stores:
        if not _store_wanted(turn, store, node):
            turn.want(
                StopRendezvous(
                    id=turn.next_effect_id(),
                    cause=turn.seq,
                    reason="this store belongs to a generation that is over",
                    node=node,
                    store=store,
                )
            )


def node_unreachable(turn: Turn, event: NodeUnreachable) -> None:
    node = turn.fleet.nodes.get(event.node)
    if node is None or node.state is not NodeState.READY:
        return
    node.state, turn.seats_changed = NodeState.UNREACHABLE, True
    node.heard_ns = turn.now_ns - int(event.unheard_s * 1e9) if event.unheard_s is not None else 0
    busy = len(_workers_on(turn, event.node))
    node.reason = (
        f"silent for {event.silent_s:.1f} s; that may be the way to it, so its {busy} workers are left alone"
    )
    say_silent(turn, node, event)


def node_reachable(turn: Turn, event: NodeReachable) -> None:
    node = turn.fleet.nodes.get(event.node)
    if node is not None and node.state in (NodeState.UNREACHABLE, NodeState.GONE):
        node.state, node.reason = NodeState.READY, "reachable again"
        turn.room_appeared = True
        say_heard(turn, event.node, HEARD)
        _end_lost(turn, node)


def node_left(turn: Turn, event: NodeLeft) -> None:
    node = turn.fleet.nodes.get(event.node)
    if node is not None:
        node.state, node.reason = NodeState.LEFT, "its agent was stopped; workers, if any, continue"
        node.heard_ns, turn.seats_changed = turn.now_ns, True
        say_heard(turn, event.node, "its agent reported that it was stopped")


def node_leaving(turn: Turn, event: NodeLeaving) -> None:
    """Its jobs are saved and leave, whether or not there is room elsewhere: nothing stays on that host."""
    node = turn.fleet.nodes.get(event.node)
    if node is None:
        return
    why = event.why or "its host is being shut down"
    if node.drained is None:
        node.drained = Drain(by=node.id, why=why, until_join=True)
    node.ends, turn.seats_changed = why, True
    leave_host(turn, node, f"{node.id} is leaving: {why}")


def node_drained(turn: Turn, event: NodeDrained) -> None:
    """From now on no worker is placed there, or again."""
    node = turn.fleet.nodes.get(event.node)
    if node is None:
        return
    if event.open:
        node.drained, turn.room_appeared = None, True
        for job in turn.fleet.jobs.values():
            job.avoid.pop(node.id, None)
    else:
        node.drained, turn.seats_changed = Drain(by=event.by, why=event.why), True
        drain_jobs(turn, node, event)


def node_gone(turn: Turn, event: NodeGone) -> None:
    """A person's word is proof of death: recover its jobs, and drop the effects that wait for the host."""
    node = turn.fleet.nodes.get(event.node)
    if node is None or node.state not in (NodeState.UNREACHABLE, NodeState.LEFT):
        return  # it became reachable meanwhile, or this was reported before
    if event.fenced:
        node_lost(turn, node, event.fenced)
        lose_workers(turn, node, event)
        turn.room_appeared = True
        return
    node.state, node.reason = NodeState.GONE, f"{event.by} confirmed that its host is gone"
    node_lost(turn, node)
    lose_workers(turn, node, event)
    devices_gone(turn, node)
    for job in turn.fleet.jobs.values():
        ref = RendezvousRef(job.id, job.rendezvous_generation)
        if job.rendezvous_generation and holds_rendezvous(job, ref, node.id):
            node.lost_stores.append(ref)
            rendezvous_lost(turn, RendezvousLost(node=node.id, store=ref, exit=Exit(None, None, "operator")))
    for effect in [e for e in turn.fleet.outbox.values() if e.node == node.id]:
        turn.close(effect.id)
        if isinstance(effect, StopRendezvous):
            node.lost_stores.append(effect.store)
        elif isinstance(effect, StopWorkers):
            node.lost += [ref for ref in effect.workers if ref not in node.lost]
    turn.room_appeared = True  # a job may have waited for the end of a worker there


def _workers_on(turn: Turn, node: str) -> list[Worker]:
    jobs = sorted(turn.fleet.nodes[node].jobs)
    return [w for job in jobs for w in turn.fleet.jobs[job].workers if w.node == node and w.alive]


def _being_ended(turn: Turn, node: str) -> set[WorkerRef]:
    """Workers that this node was asked to stop and has not answered for yet."""
    stops = [e for e in turn.fleet.outbox.values() if isinstance(e, StopWorkers) and e.node == node]
    return {ref for stop in stops for ref in stop.workers}


def _store_wanted(turn: Turn, store: RendezvousRef, node: str) -> bool:
    """Used or waited for by a living job, or already being stopped."""
    job = turn.fleet.jobs.get(store.job)
    if job is not None and holds_rendezvous(job, store, node):
        return True
    return any(
        isinstance(e, StopRendezvous) and e.store == store and e.node == node for e in turn.open_of(store.job)
    )
