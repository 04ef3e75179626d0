"""On which node the lighthouse of a torchft job is. Nodes that hold other replicas relay to it.

It is where the first replica starts and stays there while that node may be alive: a lighthouse that cannot be
reached may still form quorums of the replicas on its side, so only proof that they are dead moves it. That is
the same proof that ends workers: a person's word, or self-fencing. A node that is drained gives it up when
its last replica has left. The new one forms no quorum before every other node of the job has given it its
record, so it knows every quorum and every decision that a living replica knows.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from torchloom.core.turn import Turn
from torchloom.model.effects import MoveLighthouse, SeatReplica, ShareChange, StopRendezvous
from torchloom.model.fleet import Fleet, Job, Node, NodeState
from torchloom.model.node import RendezvousRef
from torchloom.model.quorum import LighthousePlace, LighthouseSite

REMEMBERED = 64
"""Ended torchft jobs whose terms are remembered, for orders that arrive late."""


def site_for(turn: Turn, job: Job, node: str) -> LighthouseSite | None:
    """Where the lighthouse of this replica is, which is about to start on `node`; None: it needs none."""
    seat = job.spec.replica
    if seat is None:
        return None
    place = turn.fleet.lighthouses.get(seat.set)
    if place is None:  # of a job that is older than this record, it is where the others are
        held = _held([one for one in _replicas(turn.fleet, seat.set) if one is not job])
        place = turn.fleet.lighthouses[seat.set] = LighthousePlace(next(iter(held), node))
    elif not place.node:
        place.node, place.term = node, place.term + 1
    return _site(turn.fleet, place)


def why_waiting(fleet: Fleet, job: Job) -> str:
    """Why this replica cannot make a step, whatever is done about it; empty if it can."""
    place = fleet.lighthouses.get(job.spec.replica.set) if job.spec.replica is not None else None
    home = fleet.nodes.get(place.node) if place is not None else None
    if home is None or home.state in (NodeState.READY, NodeState.LEFT):
        return ""
    return (
        f"it waits for the lighthouse on {home.id}, which is unreachable, and would lose its weights; if the "
        f"host is gone: `loom node gone {home.id}`"
    )


def node_lost(turn: Turn, node: Node, fenced: Collection[str] = ()) -> None:
    """The replicas there are dead (all, or those of these jobs): nobody behind their doors may join again,
    and a lighthouse that was there is needed elsewhere."""
    lost = [
        job
        for job in (turn.fleet.jobs[name] for name in sorted(node.jobs))
        if job.spec.replica is not None and (not fenced or job.id in fenced)
    ]
    for name in dict.fromkeys(job.spec.replica.set for job in lost if job.spec.replica is not None):
        place = turn.fleet.lighthouses.get(name)
        mine = [job for job in lost if job.spec.replica is not None and job.spec.replica.set == name]
        if place is None or (fenced and len(mine) < len(_replicas_on(turn.fleet, name, node.id))):
            continue
        if place.node == node.id:
            _move(turn, name, place, f"{node.id}, where it was, is lost", former=True)
        if place.node:
            _close_doors(turn, name, place.node, mine)
            _ask_again(turn, name, node.id, place.node)
    if not fenced:
        for name, place in turn.fleet.lighthouses.items():
            if place.node == node.id:  # of replicas that run elsewhere
                _move(turn, name, place, f"{node.id}, where it was, is lost", former=True)
            elif any(node.id in effect.lighthouse.awaited for effect in _open_moves(turn, name)):
                _move(turn, name, place, f"{node.id}, which had not answered, is lost", to=place.node)


def follow_lighthouses(turn: Turn) -> None:
    """Nodes returned or were drained, or jobs ended: what follows for lighthouses."""
    for name, place in list(turn.fleet.lighthouses.items()):
        nodes, replicas = turn.fleet.nodes, _replicas(turn.fleet, name)
        if not replicas:
            _end(turn, name, place)
        elif place.node and nodes[place.node].closed and nodes[place.node].id not in _held(replicas):
            _move(turn, name, place, f"{place.node}, where it was, is drained")
        for back in [one for one in place.former if nodes[one].state is NodeState.READY]:
            place.former.remove(back)
            if back != place.node:
                _order(turn, name, back, _site(turn.fleet, place), f"{back} is back, and it is elsewhere now")


def _end(turn: Turn, name: str, place: LighthousePlace) -> None:
    """All replicas have ended. Their doors are closed as their stores are, unless that could not be said."""
    if place.node:
        left, place.node, place.term = place.node, "", place.term + 1
        if _several(turn.fleet, name) and turn.fleet.nodes[left].state is not NodeState.GONE:
            _order(turn, name, left, _site(turn.fleet, place), "all replicas have ended")
    ended = [one for one, its in turn.fleet.lighthouses.items() if not its.node]
    for one in ended[:-REMEMBERED]:
        del turn.fleet.lighthouses[one]  # its terms begin anew; nothing of it can be left


def _several(fleet: Fleet, name: str) -> bool:
    """Whether its replicas, which have ended, were on several nodes."""
    jobs = [
        job for job in fleet.jobs.values() if job.spec.replica is not None and job.spec.replica.set == name
    ]
    return len({node for job in jobs for node in (*job.places, *(w.node for w in job.workers))}) > 1


def _move(
    turn: Turn, name: str, place: LighthousePlace, why: str, *, to: str = "", former: bool = False
) -> None:
    """To the node that holds most replicas which are alive."""
    fleet, left = turn.fleet, place.node
    for effect in _open_moves(turn, name):
        turn.close(effect.id)
    held = [node for node in _held(_replicas(fleet, name)) if fleet.nodes[node].state is not NodeState.GONE]
    if former:
        held = [node for node in held if node != left]
        place.former += [left] if left not in place.former else []
    able = [node for node in held if fleet.nodes[node].state is NodeState.READY] or held
    place.node = to or (max(sorted(set(able)), key=able.count) if able else "")
    if not place.node:
        return  # the next replica that starts takes it along
    place.term += 1
    awaited = [node for node in dict.fromkeys(held) if node != place.node]
    site = replace(_site(fleet, place), awaited=tuple(awaited))
    ends = [left] if left not in (place.node, *awaited, *place.former) else []  # without doors of its own
    for node in (place.node, *awaited, *ends):
        _order(turn, name, node, site, why)


def _order(turn: Turn, name: str, node: str, site: LighthouseSite, why: str) -> None:
    job = next(iter(_replicas(turn.fleet, name)), None)
    turn.want(
        MoveLighthouse(
            id=turn.next_effect_id(),
            cause=turn.seq,
            reason=f"the lighthouse of {name} {f'moves to {site.node}' if site.node else 'ends'}: {why}",
            node=node,
            job=job.id if job is not None else name,
            set=name,
            lighthouse=site,
        )
    )


def _close_doors(turn: Turn, name: str, at: str, jobs: list[Job]) -> None:
    for job in jobs:
        for generation in sorted({job.generation, job.rendezvous_generation} - {0}):
            turn.want(
                StopRendezvous(
                    id=turn.next_effect_id(),
                    cause=turn.seq,
                    reason=f"generation {generation} of {job.id} counts as dead",
                    node=at,
                    store=RendezvousRef(job.id, generation),
                    door_of=name,
                )
            )


def _ask_again(turn: Turn, name: str, lost: str, at: str) -> None:
    """What the lost node was asked to tell the lighthouse; told twice, it does no harm."""
    for effect in list(turn.fleet.outbox.values()):
        if not isinstance(effect, ShareChange | SeatReplica) or (effect.set, effect.node) != (name, lost):
            continue
        turn.close(effect.id)
        new = turn.next_effect_id()
        if isinstance(effect, ShareChange):
            turn.want(replace(effect, id=new, cause=turn.seq, node=at))
        else:
            turn.want(replace(effect, id=new, cause=turn.seq, node=at))


def _site(fleet: Fleet, place: LighthousePlace) -> LighthouseSite:
    node = fleet.nodes.get(place.node)
    address, port = (node.inventory.address, node.inventory.agents_port) if node is not None else ("", 0)
    return LighthouseSite(place.node, address, port, place.term)


def _open_moves(turn: Turn, name: str) -> list[MoveLighthouse]:
    return [e for e in turn.fleet.outbox.values() if isinstance(e, MoveLighthouse) and e.set == name]


def _replicas(fleet: Fleet, name: str) -> list[Job]:
    found = (job for job in fleet.jobs.values() if not job.ended)
    return [job for job in found if job.spec.replica is not None and job.spec.replica.set == name]


def _replicas_on(fleet: Fleet, name: str, node: str) -> list[Job]:
    return [job for job in _replicas(fleet, name) if node in _held([job])]


def _held(replicas: list[Job]) -> list[str]:
    """The node of each replica that has workers or a door, in order."""
    found = []
    for job in replicas:
        nodes = {worker.node for worker in job.workers if worker.alive}
        found += sorted(nodes | ({job.rendezvous_node} if job.rendezvous_generation else set()))
    return found
