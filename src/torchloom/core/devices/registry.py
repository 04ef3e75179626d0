"""The list of devices, kept in line with what agents report about their hosts.

A device that its agent no longer lists is forgotten, unless somebody took it out of use: that must hold when
it comes back. Decides nothing about jobs.
"""

from __future__ import annotations

from torchloom.core.turn import Turn
from torchloom.model.devices import Device, DeviceNote
from torchloom.model.fleet import Node

KEPT_NOTES = 64


def note(turn: Turn, device: Device, what: str, by: str = "", why: str = "") -> None:
    """Add a line to the device's history."""
    device.history = [*device.history, DeviceNote(turn.now_ns, what, by, why)][-KEPT_NOTES:]


def keep_barred(turn: Turn, device: Device) -> None:
    """Placement reads which devices get no worker at their node."""
    node = turn.fleet.nodes.get(device.node)
    if node is None:
        return
    if device.barred:
        node.barred[device.id] = None
    else:
        node.barred.pop(device.id, None)


def devices_listed(turn: Turn, node: Node) -> None:
    """The node's agent has listed its devices."""
    _have_list(turn, node)
    listed = {use.device: use for use in node.inventory.devices}
    for use in listed.values():
        known = turn.fleet.devices.get(use.device)
        if known is None:
            known = Device(id=use.device, kind=use.kind, name=use.name, node=node.id)
            turn.fleet.devices[use.device] = known
            node.devices[use.device] = None
            note(turn, known, f"seen on {node.id}")
        elif known.node != node.id:
            note(turn, known, f"moved from {known.node} to {node.id}")
            if (before := turn.fleet.nodes.get(known.node)) is not None:
                before.devices.pop(known.id, None)
                before.barred.pop(known.id, None)
            known.node = node.id
            node.devices[known.id] = None
        elif not known.present:
            note(turn, known, f"listed by {node.id} again")
        known.present, known.name = True, use.name or known.name
    for device in [d for d in _of(turn, node) if d.id not in listed]:
        if device.out is None:
            _forget(turn, node, device)
        elif device.present:
            device.present = False
            note(turn, device, f"no longer listed by {node.id}")
    node.barred = {device.id: None for device in _of(turn, node) if device.barred}


def devices_gone(turn: Turn, node: Node) -> None:
    """The host is gone, and its devices with it."""
    _have_list(turn, node)
    for device in _of(turn, node):
        device.testing = None  # nobody will answer for it
        if device.out is None:
            _forget(turn, node, device)
        else:
            device.present = False


def _have_list(turn: Turn, node: Node) -> None:
    """Make the node's own list, if the node is from a snapshot that is older than such lists."""
    known = [turn.fleet.devices.get(use.device) for use in node.inventory.devices]
    if not node.devices and (node.barred or any(d is not None and d.node == node.id for d in known)):
        node.devices = {d.id: None for d in turn.fleet.devices.values() if d.node == node.id}


def _of(turn: Turn, node: Node) -> list[Device]:
    """The devices of a node, by its own list: the fleet's may have ten thousand."""
    return [turn.fleet.devices[id] for id in node.devices]


def _forget(turn: Turn, node: Node, device: Device) -> None:
    del turn.fleet.devices[device.id], node.devices[device.id]
    node.barred.pop(device.id, None)
