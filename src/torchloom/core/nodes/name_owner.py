"""Who owns a node's name: one host at a time, and of that host the agent that joined last.

Two hosts with one name would both obey, and each would be taken for the other. While its owner is
reachable, no other host gets it. An agent that was started again on the same host has it at once. Silence is
no proof of death, so another host gets the name of a silent one only if no worker may live there; what it
takes to believe that a host was rebooted is `_is_rebooted`. Changes nothing but the claims that are kept
with the node.
"""

from __future__ import annotations

from itertools import islice

from torchloom.core.turn import Turn
from torchloom.model.events import Envelope, NodeJoined
from torchloom.model.fleet import Fleet, Node, NodeState
from torchloom.model.messages import Standing
from torchloom.model.node import HostId, Inventory

CLAIMS_KEPT = 8
OTHER_NAME = "start this agent with another --node (or LOOM_NODE)"


def host_of(inventory: Inventory) -> HostId:
    return HostId(inventory.hostname, inventory.boot_id, inventory.home)


def standing(node: Node | None, session: str, host: HostId, seen_s: float | None = None) -> Standing:
    """Whether this agent has the name of a node, or may have it. `seen_s`: when the other was seen last."""
    if node is None:
        return Standing("free")
    if node.session == session:
        return Standing("yours")
    held = host_of(node.inventory)
    # Without both installations' names (events of before there were any) every agent counts as the same.
    if not held.home or not host.home or (held.home, held.boot_id) == (host.home, host.boot_id):
        return Standing("free")
    whose = f"host {held.hostname} ({node.inventory.address})"
    if node.state is NodeState.READY:
        seen = "which is reachable" if seen_s is None else f"seen {seen_s:.1f} s ago"
        return Standing("taken", f"node name {node.id} is already taken by {whose}, {seen}", OTHER_NAME)
    if node.state is NodeState.GONE or not (node.taken or node.stores) or _is_rebooted(node, host):
        return Standing("free")
    why = f"node name {node.id} belongs to {whose}, which is unreachable, and its workers may still run there"
    return Standing(
        "taken", why, f"{OTHER_NAME}, or say `loom node gone {node.id}` if that host is off for good"
    )


def _is_rebooted(node: Node, host: HostId) -> bool:
    """Whether this is the node's own host after another boot: by its installation, or else by its name.

    One that asked for the name before the node's last heartbeat is not: two boots of one host are never there
    together. Nor is another installation on the very same boot: its workers may still run.
    """
    held = host_of(node.inventory)
    if held.boot_id == host.boot_id or node.claims.get(_key(host), node.heard_ns) < node.heard_ns:
        return False
    return held.home == host.home or held.hostname == host.hostname


def change_of(node: Node | None, inventory: Inventory) -> str:
    """What has become of the node's host since it joined before; empty: nothing."""
    if node is None or node.inventory.boot_id == inventory.boot_id:
        return ""
    held, host = host_of(node.inventory), host_of(inventory)
    if held.hostname == host.hostname or held.home == host.home:
        return "its host was rebooted"
    return f"host {host.hostname} has its name now"


def other_claims(node: Node, inventory: Inventory) -> dict[str, int]:
    """Those that are still others' when this host has the name."""
    mine = _key(host_of(inventory))
    return {key: since_ns for key, since_ns in node.claims.items() if key != mine}


def refused(turn: Turn, event: NodeJoined) -> bool:
    """Whether this join is not to be believed; then it is remembered who wanted the name."""
    node, host = turn.fleet.nodes.get(event.node), host_of(event.inventory)
    if node is None or standing(node, event.session, host).name != "taken":
        return False
    node.claims.setdefault(_key(host), turn.now_ns)
    for oldest in list(islice(node.claims, max(0, len(node.claims) - CLAIMS_KEPT))):
        del node.claims[oldest]
    return True


def is_of_another_session(fleet: Fleet, envelope: Envelope) -> bool:
    """Whether this comes from an agent that is not, or no longer, the one of its node."""
    if not envelope.session or isinstance(envelope.body, NodeJoined):
        return False
    node = fleet.nodes.get(getattr(envelope.body, "node", ""))
    return node is not None and node.session != envelope.session


def _key(host: HostId) -> str:
    return f"{host.boot_id}/{host.home}"
