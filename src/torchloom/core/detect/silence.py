"""Which nodes have fallen silent. A finding about the way to a node, never about its workers."""

from __future__ import annotations

from collections.abc import Mapping

from torchloom.model.events import NodeReachable, NodeUnreachable
from torchloom.model.fleet import Fleet, NodeState


def silent_nodes(
    fleet: Fleet, last_heard_s: Mapping[str, float], now_s: float, limit_s: float
) -> list[NodeUnreachable]:
    """Nodes that are thought ready and have not been heard for longer than `limit_s`.

    A node that was never heard by this weaver is not judged: the weaver itself may be new.
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
