"""Which node holds which ranks."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest

from torchloom.model.fleet import Fleet, Job, Node, NodeState
from torchloom.model.job import JobSpec


def refusal(fleet: Fleet, spec: JobSpec, queue: bool | None) -> str:
    """Why a job is not even taken to wait for room; empty when it is.

    It may always wait (`queue` true), never (false), or, if the caller does not say, when the nodes that are
    known could hold it once they are empty.
    """
    need, per_node = spec.nodes, spec.workers_per_node
    rooms = sorted(_rooms(fleet), reverse=True)
    if queue is True or (queue is None and not rooms):
        return ""
    if queue is False:
        fitting = len(_fitting(spec, fleet.nodes.values(), None))
        return "" if fitting >= need else f"There is no room now: {_why_not(fleet, spec, fitting)}."
    if _could_shrink(rooms, spec):
        return ""
    if per_node > rooms[0]:
        return f"{per_node} workers on one node were asked for and the largest node holds {rooms[0]}."
    able = sum(room >= per_node for room in rooms)
    if need > able:
        return f"{need} nodes for {per_node} workers each were asked for and {able} could hold so many."
    return ""


def shape(fleet: Fleet, world_size: int) -> tuple[int, int]:
    """Workers per node and nodes for a world of this size: as few nodes as can hold it in equal shares."""
    rooms = _rooms(fleet)
    for nodes in range(1, len(rooms) + 1):
        share, rest = divmod(world_size, nodes)
        if not rest and sum(room >= share for room in rooms) >= nodes:
            return share, nodes
    return world_size, 1


def _could_shrink(rooms: list[int], spec: JobSpec) -> bool:
    """Whether nodes that are empty hold the smallest world the owner would accept."""
    if spec.min_workers is None:
        return False
    return sum(min(room, spec.workers_per_node) for room in rooms) >= spec.min_workers


def _rooms(fleet: Fleet) -> list[int]:
    """What the nodes hold when they are empty; a host that is gone holds nothing."""
    return [n.inventory.max_workers for n in fleet.nodes.values() if n.state is not NodeState.GONE]


def place(fleet: Fleet, job: Job) -> tuple[list[str], str]:
    """Nodes by group rank, or an empty list and the reason why the job must wait.

    Nodes that held the job before are preferred, because their spawners are warm and their caches full;
    then its spare places; then the emptiest. Nothing of the job may live any more.
    """
    spec = job.spec
    held = list(dict.fromkeys(w.node for w in job.workers))
    before = _fitting(spec, (fleet.nodes[n] for n in held), job)
    chosen = _emptiest(before, spec.nodes)
    if len(chosen) < spec.nodes:
        fitting = _fitting(spec, fleet.nodes.values(), job)
        if len(fitting) < spec.nodes:
            return [], _why_not(fleet, spec, len(fitting))
        others = [n for n in fitting if n.id not in chosen]
        spares = [n for n in others if job.id in n.spare]
        chosen += _emptiest(spares, spec.nodes - len(chosen))
        chosen += _emptiest([n for n in others if n.id not in chosen], spec.nodes - len(chosen))
    return _in_place(held, chosen), ""


def _in_place(held: list[str], chosen: list[str]) -> list[str]:
    """Who stays keeps its group rank, because its ranks' state is in its memory; the others fill the gaps."""
    order: list[str | None] = [node if node in chosen else None for node in held[: len(chosen)]]
    order += [None] * (len(chosen) - len(order))
    rest = iter([node for node in chosen if node not in order])
    return [node if node is not None else next(rest) for node in order]


def _fitting(spec: JobSpec, nodes: Iterable[Node], job: Job | None) -> list[Node]:
    name, avoid = (job.id, job.avoid) if job is not None else ("", {})
    need = spec.workers_per_node
    return [n for n in nodes if n.usable and n.room_for(name) >= need and n.id not in avoid]


def _emptiest(nodes: list[Node], count: int) -> list[str]:
    by_room = [(-n.room, n.id) for n in nodes]
    return [node for _, node in nsmallest(count, by_room)]


def _why_not(fleet: Fleet, spec: JobSpec, fitting: int) -> str:
    ready = sum(1 for n in fleet.nodes.values() if n.state is NodeState.READY)
    if ready == 0:
        return "no node is connected; start an agent (`loom up` or `loom agent`)"
    drained = [n.id for n in fleet.nodes.values() if n.state is NodeState.READY and n.drained]
    names = ", ".join(drained[:4]) + (" …" if len(drained) > 4 else "")
    not_used = f" ({names} {'is' if len(drained) == 1 else 'are'} drained)" if drained else ""
    return (
        f"{spec.nodes} node(s) with room for {spec.workers_per_node} more workers are needed, "
        f"{fitting} of {ready} connected have it{not_used}; it starts when there is room"
    )
