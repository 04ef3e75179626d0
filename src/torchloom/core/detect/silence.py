"""Which nodes have fallen silent. A finding about the path to a node, never about its workers."""

from __future__ import annotations

from collections.abc import Mapping

from torchloom.model.events import NodeGone, NodeReachable, NodeUnreachable
from torchloom.model.fleet import Fleet, NodeState


def silent_nodes(
    fleet: Fleet, last_heard_s: Mapping[str, float], now_s: float, limit_s: float
) -> list[NodeUnreachable]:
    """Nodes that count as ready and have sent no heartbeat for longer than `limit_s`.

    A node from which this weaver never received a heartbeat is not judged: the weaver itself may be new.
    """
    return [
        NodeUnreachable(node=node.id, silent_s=now_s - last_heard_s[node.id])
        for node in fleet.nodes.values()
        if node.state is NodeState.READY
        and node.id in last_heard_s
        and now_s - last_heard_s[node.id] > limit_s
    ]


def heard_again(
    fleet: Fleet, last_heard_s: Mapping[str, float], now_s: float, limit_s: float
) -> list[NodeReachable]:
    """Nodes thought unreachable or gone whose heartbeats arrive: the gap was on our side, or too short."""
    return [
        NodeReachable(node=node.id)
        for node in fleet.nodes.values()
        if node.state in (NodeState.UNREACHABLE, NodeState.GONE)
        and now_s - last_heard_s.get(node.id, -limit_s) < limit_s / 2
    ]


FENCE_MARGIN_S = 2.0
FENCE_DRIFT = 0.02
"""What clocks, a late message and the killing itself may take."""


def fenced_nodes(fleet: Fleet, last_heard_s: Mapping[str, float], now_s: float) -> list[NodeGone]:
    """Silent nodes that must have killed the workers of some jobs by now, by their policy."""
    found = []
    for node in fleet.nodes.values():
        if node.state is not NodeState.UNREACHABLE or node.id not in last_heard_s:
            continue
        silent_s = now_s - last_heard_s[node.id]
        limits = {job: fleet.jobs[job].spec.policy.self_fence_s for job in node.jobs}
        over = [
            job
            for job, limit_s in sorted(limits.items())
            if limit_s
            and silent_s > limit_s * (1 + FENCE_DRIFT) + FENCE_MARGIN_S
            and not _blind(fleet, job, node.id)
        ]
        if over:
            found.append(NodeGone(node=node.id, by="self-fencing", fenced=tuple(over)))
    return found


def _blind(fleet: Fleet, job: str, node: str) -> bool:
    """Whether a worker there has no black box: then nobody but its agent could have ended it."""
    return any(w.blind for w in fleet.jobs[job].workers if w.node == node and w.alive)
