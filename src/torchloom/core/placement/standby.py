"""Spare places of jobs that have standby: kept free on other nodes, so that a lost node is replaced at once.

A spare place is room for one node's share of workers, with a warm spawner, on a node that holds none of the
job's workers (it would be lost with them). Nobody else is placed there. Placing the ranks is for place.py.
"""

from __future__ import annotations

from torchloom.core.turn import Turn
from torchloom.model.effects import WarmSpawner
from torchloom.model.fleet import Job, Node


def keep_spares(turn: Turn) -> bool:
    """Bring the spare places in line with the nodes; whether room became free by it."""
    freed = False
    for name in turn.fleet.standby:
        job = turn.fleet.jobs[name]
        count = job.spec.standby if job.workers and not job.ended else 0
        busy = {worker.node for worker in job.workers if worker.alive}
        for node in [turn.fleet.nodes[id] for id in job.spares]:
            if not node.usable or node.id in busy or node.room < 0:
                drop_spare(turn, job, node)
                freed = True
        for id in job.spares[count:]:
            drop_spare(turn, job, turn.fleet.nodes[id])
            freed = True
        for node in _free(turn, job, busy)[: count - len(job.spares)]:
            _add(turn, job, node)
    return freed


def _free(turn: Turn, job: Job, busy: set[str]) -> list[Node]:
    """Nodes that could hold a spare place, the emptiest first."""
    taken = busy | set(job.spares)
    share = job.spec.workers_per_node
    nodes = [n for n in turn.fleet.nodes.values() if n.usable and n.room >= share and n.id not in job.avoid]
    return sorted((n for n in nodes if n.id not in taken), key=lambda n: (-n.room, n.id))


def _add(turn: Turn, job: Job, node: Node) -> None:
    job.spares.append(node.id)
    node.spare[job.id] = job.spec.workers_per_node
    if job.spec.spawn == "warm":
        turn.want(
            WarmSpawner(
                id=turn.next_effect_id(),
                cause=turn.seq,
                reason=f"{node.id} is on standby for {job.id}",
                node=node.id,
                job=job.id,
                interpreter=job.spec.interpreter,
                preload=job.spec.preload,
            )
        )


def drop_spare(turn: Turn, job: Job, node: Node) -> None:
    """The place is used, lost or no longer wanted."""
    if node.id not in job.spares:
        return
    job.spares.remove(node.id)
    del node.spare[job.id]
    for effect in turn.open_of(job.id):
        if isinstance(effect, WarmSpawner) and effect.node == node.id:
            turn.close(effect.id)
