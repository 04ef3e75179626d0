"""Which node holds which ranks, and with how many workers a job starts when there is no room for all.

A job whose owner named a smallest number is elastic: it starts with the largest world there is room for,
after a short wait for nodes to return. It is never ended for the sake of more: it grows at its next start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import nsmallest

from torchloom.core.placement.neighbours import domain_of
from torchloom.core.turn import Turn
from torchloom.model.fleet import Fleet, Job, Node, NodeState
from torchloom.model.job import JobSpec
from torchloom.model.timers import TimerKind

SHRINK_WAIT_S = 5.0
"""An agent or a link that was only restarted is back by then; a host that reboots takes minutes."""


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
    then its spare places; then the emptiest. Replicas of a torchft job are spread over nodes. Nothing of the
    job may live any more.
    """
    spec, spread = job.spec, _spread(fleet, job)
    held = list(dict.fromkeys(w.node for w in job.workers))
    before = _fitting(spec, (fleet.nodes[n] for n in held), job)
    chosen = _emptiest(before, spec.nodes, spread)
    if len(chosen) < spec.nodes:
        fitting = _fitting(spec, fleet.nodes.values(), job)
        fitting = _able_to_meet(fleet, job, fitting)
        if len(fitting) < spec.nodes:
            return [], _why_not(fleet, spec, len(fitting))
        others = [n for n in fitting if n.id not in chosen]
        spares = [n for n in others if job.id in n.spare]
        chosen += _emptiest(spares, spec.nodes - len(chosen), spread)
        rest = [n for n in others if n.id not in chosen]
        chosen += _emptiest(rest, spec.nodes - len(chosen), spread)
    return _in_place(held, chosen), ""


def _spread(fleet: Fleet, job: Job) -> dict[str, tuple[int, int]]:
    """By node, how many other replicas of its torchft job are in the same failure domain and on the node: the
    fewer, the better. Empty for any other job."""
    seat = job.spec.replica
    if seat is None:
        return {}
    nodes: Counter[str] = Counter()
    for other in fleet.jobs.values():
        theirs = other.spec.replica
        if other is not job and not other.ended and theirs is not None and theirs.set == seat.set:
            nodes.update({worker.node for worker in other.workers})
    domains: Counter[str] = Counter()
    for node, count in nodes.items():
        domains[domain_of(fleet.nodes[node])] += count
    return {node.id: (domains[domain_of(node)], nodes[node.id]) for node in fleet.nodes.values()}


def _able_to_meet(fleet: Fleet, job: Job, nodes: list[Node]) -> list[Node]:
    """Nodes on which a replica of a torchft job can reach the lighthouse of the others: agents of an earlier
    version cannot relay to it and would start one of their own."""
    seat = job.spec.replica
    place = fleet.lighthouses.get(seat.set) if seat is not None else None
    home = fleet.nodes.get(place.node) if place is not None else None
    if home is None:
        return nodes
    return [n for n in nodes if n is home or (n.inventory.agents_port and home.inventory.agents_port)]


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


def _emptiest(nodes: list[Node], count: int, spread: Mapping[str, tuple[int, int]]) -> list[str]:
    by_room = [(spread.get(n.id, (0, 0)), -n.room, n.id) for n in nodes]
    return [node for *_, node in nsmallest(count, by_room)]


def _why_not(fleet: Fleet, spec: JobSpec, fitting: int) -> str:
    ready = sum(1 for n in fleet.nodes.values() if n.state is NodeState.READY)
    if ready == 0:
        return "no node is connected; start an agent (`loom up` or `loom agent`)"
    drained = [n.id for n in fleet.nodes.values() if n.state is NodeState.READY and n.closed]
    names = ", ".join(drained[:4]) + (" …" if len(drained) > 4 else "")
    not_used = f" ({names} {'is' if len(drained) == 1 else 'are'} drained)" if drained else ""
    barred = [device for n in fleet.nodes.values() if n.state is NodeState.READY for device in n.barred]
    if barred:
        names = ", ".join(barred[:4]) + (" …" if len(barred) > 4 else "")
        not_used += f" ({names} {'is' if len(barred) == 1 else 'are'} out of use)"
    nodes, workers = _counted(spec.nodes, "node"), _counted(spec.workers_per_node, "more worker")
    return (
        f"needs {nodes} with room for {workers}{' each' if spec.nodes > 1 else ''}; "
        f"{fitting} of {ready} connected nodes {'has' if fitting == 1 else 'have'} it{not_used}; "
        "it starts when there is room"
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def wanted(job: Job) -> int:
    """Workers that the job should have."""
    return job.target or job.spec.world_size


def unit(spec: JobSpec) -> int:
    """Worlds are multiples of this: a replica is whole or not there."""
    return spec.world_size // spec.replicas if spec.replicas > 1 else 1


def replicas(job: Job) -> int:
    """Of the current generation."""
    return max(1, len(job.workers) // unit(job.spec)) if job.spec.replicas > 1 else 1


def seat_or_wait(turn: Turn, job: Job) -> tuple[list[str], str]:
    """The node of each rank of the next generation and, if there are fewer than wanted, why; or none and why.

    Sets the timer after which fewer will do. Nodes that the job left are used only if nothing else is there.
    """
    nodes, why = _seats(turn, job)
    if not nodes and job.avoid and not job.short_since_ns:
        job.avoid.clear()
        nodes, why = _seats(turn, job)
    return nodes, why


def _seats(turn: Turn, job: Job) -> tuple[list[str], str]:
    least, most = job.spec.min_workers, wanted(job)
    nodes: list[str] = []
    why_not = f"needs room for {_counted(most, 'worker')}; it starts when there is room"
    if most == job.spec.world_size:
        nodes, why_not = place(turn.fleet, job)
    if nodes:
        return [node for node in nodes for _ in range(job.spec.workers_per_node)], ""
    if least is None and most == job.spec.world_size:
        return [], why_not
    found = _packed(turn.fleet, job, most)
    found = found[: len(found) // unit(job.spec) * unit(job.spec)]
    if len(found) == most:
        return found, ""
    least = min(most, job.spec.world_size) if least is None else least  # as many as it was submitted with
    if len(found) < least:
        job.short_since_ns = 0
        return [], f"{why_not}; at least {least} workers are needed and there is room for {len(found)}"
    fewer = f"with {len(found)} of {most} workers"
    if job.workers and len(found) >= len(job.workers):  # no loss, so there is nothing to wait for
        return found, f"{fewer}, as many as there is room for"
    job.short_since_ns = job.short_since_ns or turn.now_ns
    left_s = SHRINK_WAIT_S - (turn.now_ns - job.short_since_ns) / 1e9
    if left_s <= 0:
        return found, f"{fewer}, because no more room appeared within {SHRINK_WAIT_S:g} s"
    turn.set_timer(TimerKind.SHRINK, job, left_s)
    return [], f"{why_not}; it starts {fewer} unless more room appears within {SHRINK_WAIT_S:g} s"


def fits(fleet: Fleet, job: Job, size: int) -> bool:
    """Whether the job could have so many workers if its own places were free."""
    return len(_packed(fleet, job, size, with_own=True)) >= size


def room_elsewhere(fleet: Fleet, job: Job, node: str) -> int:
    """How many of its workers the job could have without this node, if its own places were free."""
    return len(_packed(fleet, job, wanted(job), with_own=True, without=node))


def why_no_room(
    fleet: Fleet, job: Job, without: str = "", device: str = "", where: str = "other nodes"
) -> str:
    """Why the job cannot continue without this node or device and those that are drained; empty if it can."""
    room = len(_packed(fleet, job, wanted(job), with_own=True, without=without, device=device))
    need, least = wanted(job), job.spec.min_workers
    whole = room // unit(job.spec) * unit(job.spec)
    if room >= need or (least is not None and whole >= least):
        return ""
    if least is None:
        return f"{where} have room for {room} of its {need} workers, and it may not shrink (min_workers)"
    return f"{where} have room for {whole} workers, and it needs at least {least}"


def _packed(
    fleet: Fleet, job: Job, most: int, with_own: bool = False, without: str = "", device: str = ""
) -> list[str]:
    """As many ranks as fit, up to `most`: on nodes that held the job before, then on the emptiest.

    No node gets more than its share of a world of that size: that is what its devices were meant for.
    """
    share = max(job.spec.workers_per_node, -(-most // job.spec.nodes))
    held = {worker.node for worker in job.workers}
    room: dict[str, int] = {}
    spread = _spread(fleet, job)
    for node in fleet.nodes.values():
        free = node.room_for(job.id) + (node.jobs.get(job.id, 0) if with_own else 0)
        free -= node.limit() - node.limit(device) if device else 0
        if node.usable and free > 0 and node.id not in job.avoid and node.id != without:
            room[node.id] = min(free, share)
    by_choice = [
        (id not in held, spread.get(id, (0, 0)), -free, -fleet.nodes[id].room, id)
        for id, free in room.items()
    ]
    found: list[str] = []
    for *_, id in nsmallest(most, by_choice):
        found += [id] * min(room[id], most - len(found))
    return found
