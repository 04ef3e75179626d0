"""Chooses a GPU for each new worker: one that is in use by as few others as possible, and not out of use.

All ranks of a job on a node see the same list of GPUs, in the order of their local ranks, as they would under
torchrun; only when there are fewer GPUs than ranks do ranks share one. CPU cores are not chosen here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchloom.model.fleet import Fleet
from torchloom.model.worker import DeviceUse


def choose(fleet: Fleet, nodes: Sequence[str]) -> list[tuple[DeviceUse, ...]]:
    """The devices of each rank; `nodes` has the node of each. None where a node has no GPU."""
    shares = Counter(nodes)
    taken = _taken(fleet, shares)
    seats = {node: _of_node(fleet, node, count, taken) for node, count in shares.items()}
    local: Counter[str] = Counter()
    found: list[tuple[DeviceUse, ...]] = []
    for node in nodes:
        mine = seats[node]
        found.append((mine[local[node] % len(mine)],) if mine else ())
        local[node] += 1
    return found


def _of_node(fleet: Fleet, node: str, count: int, taken: Counter[str]) -> list[DeviceUse]:
    known = fleet.nodes[node]
    free = [d for d in known.inventory.devices if d.kind == "gpu" and d.device not in known.barred]
    order = {use.device: at for at, use in enumerate(free)}
    emptiest = sorted(free, key=lambda use: (taken[use.device], order[use.device]))[:count]
    return sorted(emptiest, key=lambda use: order[use.device])


def _taken(fleet: Fleet, nodes: Counter[str]) -> Counter[str]:
    """How many living workers each device of these nodes has."""
    if not any(use.kind == "gpu" for node in nodes for use in fleet.nodes[node].inventory.devices):
        return Counter()
    jobs = dict.fromkeys(job for node in nodes for job in fleet.nodes[node].jobs)
    return Counter(
        use.device
        for name in jobs
        for worker in fleet.jobs[name].workers
        if worker.alive and worker.node in nodes
        for use in worker.devices
    )
