"""With how many workers a job starts when there is no room for all that are wanted.

A job whose owner named a smallest number is elastic: it starts with the largest world there is room for,
after a short wait for nodes to return. It is never ended for the sake of more: it grows at its next start.
"""

from __future__ import annotations

from heapq import nsmallest

from torchloom.core.placement.place import place
from torchloom.core.turn import Turn
from torchloom.model.fleet import Fleet, Job
from torchloom.model.job import JobSpec
from torchloom.model.timers import TimerKind

SHRINK_WAIT_S = 5.0
"""An agent or a link that was only restarted is back by then; a host that reboots takes minutes."""


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
    why_not = f"room for {most} workers is needed; it starts when there is room"
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


def why_no_room(fleet: Fleet, job: Job, without: str = "") -> str:
    """Why the job cannot continue without this node and those that are drained; empty if it can."""
    room, need, least = room_elsewhere(fleet, job, without), wanted(job), job.spec.min_workers
    whole = room // unit(job.spec) * unit(job.spec)
    if room >= need or (least is not None and whole >= least):
        return ""
    if least is None:
        return f"other nodes have room for {room} of its {need} workers, and it may not shrink (min_workers)"
    return f"other nodes have room for {whole} workers, and it needs at least {least}"


def _packed(fleet: Fleet, job: Job, most: int, with_own: bool = False, without: str = "") -> list[str]:
    """As many ranks as fit, up to `most`: on nodes that held the job before, then on the emptiest.

    No node gets more than its share of a world of that size: that is what its devices were meant for.
    """
    share = max(job.spec.workers_per_node, -(-most // job.spec.nodes))
    held = {worker.node for worker in job.workers}
    room: dict[str, int] = {}
    for node in fleet.nodes.values():
        free = node.room_for(job.id) + (node.jobs.get(job.id, 0) if with_own else 0)
        if node.usable and free > 0 and node.id not in job.avoid and node.id != without:
            room[node.id] = min(free, share)
    by_choice = [(id not in held, -free, -fleet.nodes[id].room, id) for id, free in room.items()]
    found: list[str] = []
    for *_, id in nsmallest(most, by_choice):
        found += [id] * min(room[id], most - len(found))
    return found
