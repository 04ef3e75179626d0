"""Which node holds which ranks."""

from __future__ import annotations

from torchloom.model.fleet import ENDED, Fleet, Job, NodeState
from torchloom.model.job import JobSpec


def used_slots(fleet: Fleet, node: str, but: str = "") -> int:
    """Workers that occupy the node now, those of job `but` left out."""
    return sum(
        1
        for job in fleet.jobs.values()
        if job.id != but and job.state not in ENDED
        for worker in job.workers
        if worker.node == node and worker.alive
    )


def largest_node(fleet: Fleet) -> int:
    """Most workers that any single node could hold if it were empty."""
    return max((n.inventory.max_workers for n in fleet.nodes.values()), default=0)


def place(fleet: Fleet, job: Job) -> tuple[list[str], str]:
    """Nodes by group rank, or an empty list and the reason why the job must wait.

    Nodes that held the job before are preferred, because their spawners are warm and their caches full;
    then the emptiest.
    """
    spec = job.spec
    before = {w.node for w in job.workers}
    free: list[tuple[bool, int, str]] = []
    for node in fleet.nodes.values():
        room = node.inventory.max_workers - used_slots(fleet, node.id, but=job.id)
        if node.state is NodeState.READY and room >= spec.workers_per_node:
            free.append((node.id not in before, -room, node.id))
    if len(free) >= spec.nodes:
        return [node for _, _, node in sorted(free)[: spec.nodes]], ""
    return [], _why_not(fleet, spec, len(free))


def _why_not(fleet: Fleet, spec: JobSpec, fitting: int) -> str:
    ready = sum(1 for n in fleet.nodes.values() if n.state is NodeState.READY)
    if ready == 0:
        return "no node is connected; start an agent (`loom up` or `loom agent`)"
    return (
        f"{spec.nodes} node(s) with room for {spec.workers_per_node} more workers are needed, "
        f"{fitting} of {ready} connected have it; it starts when there is room"
    )
