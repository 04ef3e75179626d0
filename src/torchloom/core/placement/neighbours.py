"""Which node keeps copies of another node's states in memory.

The nodes of a job form a ring: each sends copies to one other and keeps copies of one other, so no node
carries more than its share. Nodes of one failure domain stand side by side in the ring, and a node's
neighbour is as many places ahead as the largest domain has nodes: if no domain has more than half of the
nodes, no copy is in the domain of its original. Pure; the agents copy and fetch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchloom.model.fleet import Fleet, Job, Node, NodeState, Worker
from torchloom.model.neighbours import MemoryPeer, MemoryPlan, RankMemory


def ring(nodes: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Each node's neighbour, from (node, failure domain); empty for fewer than two nodes."""
    if len(nodes) < 2:
        return {}
    ordered = [node for node, _ in sorted(nodes, key=lambda one: one[1])]
    largest = max(Counter(domain for _, domain in nodes).values())
    ahead = largest if largest < len(nodes) else 1
    return {node: ordered[(place + ahead) % len(ordered)] for place, node in enumerate(ordered)}


def choose_neighbours(fleet: Fleet, job: Job, workers: Sequence[Worker]) -> None:
    """Before `workers` replace the job's workers: note where the states of the ranks are, and where the new
    ones are to be copied."""
    same_world = len(workers) == len(job.workers)  # images in memory fit a world of the same size only
    job.memory_at = {}
    if same_world and job.restore is None:
        for worker in job.workers:
            kept_by = job.neighbours.get(worker.node)
            job.memory_at[worker.ref.rank] = [worker.node, *([kept_by] if kept_by else [])]
    nodes = [fleet.nodes[id] for id in dict.fromkeys(worker.node for worker in workers)]
    able = all(node.inventory.memory_port for node in nodes)
    job.neighbours = ring([(node.id, _domain(node)) for node in nodes]) if able else {}


def memory_plan(fleet: Fleet, job: Job, node: str, workers: Sequence[Worker]) -> MemoryPlan | None:
    """What this node does about the states of the ranks it starts; None for a job of one node."""
    if node not in job.neighbours:
        return None
    ranks = []
    for worker in workers:
        held = job.memory_at.get(worker.ref.rank, [])
        others = (fleet.nodes[one] for one in dict.fromkeys(held) if one != node and one in fleet.nodes)
        peers = tuple(_peer(one) for one in others if one.state is NodeState.READY)
        ranks.append(RankMemory(worker.ref.rank, held[0] if held else "", peers))
    return MemoryPlan(_peer(fleet.nodes[job.neighbours[node]]), tuple(ranks))


def _peer(node: Node) -> MemoryPeer:
    return MemoryPeer(node.id, node.inventory.address, node.inventory.memory_port)


def _domain(node: Node) -> str:
    return node.inventory.domain or node.inventory.hostname
