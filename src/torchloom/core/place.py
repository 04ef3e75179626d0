"""Which node holds which ranks."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest

from torchloom.model.fleet import Fleet, Job, Node, NodeState
from torchloom.model.job import JobSpec


def largest_node(fleet: Fleet) -> int:
    """Most workers that any single node could hold if it were empty."""
    return max((n.inventory.max_workers for n in fleet.nodes.values()), default=0)


def place(fleet: Fleet, job: Job) -> tuple[list[str], str]:
    """Nodes by group rank, or an empty list and the reason why the job must wait.

    Nodes that held the job before are preferred, because their spawners are warm and their caches full;
    then the emptiest. Nothing of the job may live any more.
    """
    spec = job.spec
    before = _fitting(spec, (fleet.nodes[n] for n in {w.node for w in job.workers}))
    if len(before) >= spec.nodes:
        return _emptiest(before, spec.nodes), ""
    fitting = _fitting(spec, fleet.nodes.values())
    if len(fitting) >= spec.nodes:
        held = {n.id for n in before}
        others = [n for n in fitting if n.id not in held]
        kept = _emptiest(before, spec.nodes)
        return kept + _emptiest(others, spec.nodes - len(kept)), ""
    return [], _why_not(fleet, spec, len(fitting))


def _fitting(spec: JobSpec, nodes: Iterable[Node]) -> list[Node]:
    need, ready = spec.workers_per_node, NodeState.READY
    return [n for n in nodes if n.inventory.max_workers - n.taken >= need and n.state is ready]


def _emptiest(nodes: list[Node], count: int) -> list[str]:
    by_room = [(n.taken - n.inventory.max_workers, n.id) for n in nodes]
    return [node for _, node in nsmallest(count, by_room)]


def _why_not(fleet: Fleet, spec: JobSpec, fitting: int) -> str:
    ready = sum(1 for n in fleet.nodes.values() if n.state is NodeState.READY)
    if ready == 0:
        return "no node is connected; start an agent (`loom up` or `loom agent`)"
    return (
        f"{spec.nodes} node(s) with room for {spec.workers_per_node} more workers are needed, "
        f"{fitting} of {ready} connected have it; it starts when there is room"
    )
