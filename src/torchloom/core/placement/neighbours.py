"""Which node keeps copies of another node's states in memory.

The nodes of a job form a ring: each sends copies to one other and keeps copies of one other, so no node
carries more than its share. Nodes of one failure domain stand side by side in the ring, and a node's
neighbour is as many places ahead as the largest domain has nodes: if no domain has more than half of the
nodes, no copy is in the domain of its original. After a change of the number of ranks every node gathers the
states of all ranks, because any shard may be needed on it. Pure; the agents copy and fetch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchloom.model.fleet import Fleet, Job, Node, NodeState, Worker
from torchloom.model.neighbours import NOBODY, MemoryPeer, MemoryPlan, RankMemory

GATHERED_RANKS = 64
"""The states of a job with more ranks than this would not fit into the memory of each of its nodes."""


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
    job.memory_at = {}
    if job.restore is None:
        for worker in job.workers:
            kept_by = job.neighbours.get(worker.node)
            job.memory_at[worker.ref.rank] = [worker.node, *([kept_by] if kept_by else [])]
    nodes = [fleet.nodes[id] for id in dict.fromkeys(worker.node for worker in workers)]
    able = all(node.inventory.memory_port for node in nodes)
    job.neighbours = ring([(node.id, domain_of(node)) for node in nodes]) if able else {}


def memory_plan(fleet: Fleet, job: Job, node: str, workers: Sequence[Worker]) -> MemoryPlan | None:
    """What this node does about the states of the ranks it starts; None: it copies and needs nothing."""
    world = len(job.memory_at)
    resized = world not in (0, len(job.workers))
    if resized:
        ranks = sorted(job.memory_at) if world <= GATHERED_RANKS else []
    else:
        ranks = [worker.ref.rank for worker in workers]
    neighbour = job.neighbours.get(node)
    stayed = all(job.memory_at.get(rank, [node])[0] == node for rank in ranks)
    if neighbour is None and stayed and not (resized and ranks):
        return None
    copy_to = _peer(fleet.nodes[neighbour]) if neighbour is not None else NOBODY
    where = tuple(_rank_memory(fleet, job, node, rank) for rank in ranks)
    return MemoryPlan(copy_to, where, world if resized else 0)


def _rank_memory(fleet: Fleet, job: Job, node: str, rank: int) -> RankMemory:
    held = job.memory_at.get(rank, [])
    others = (fleet.nodes[one] for one in dict.fromkeys(held) if one != node and one in fleet.nodes)
    able = (one for one in others if one.state is NodeState.READY and one.inventory.memory_port)
    return RankMemory(rank, held[0] if held else "", tuple(_peer(one) for one in able))


def _peer(node: Node) -> MemoryPeer:
    return MemoryPeer(node.id, node.inventory.address, node.inventory.memory_port)


def domain_of(node: Node) -> str:
    """What fails together with it."""
    return node.inventory.domain or node.inventory.hostname
