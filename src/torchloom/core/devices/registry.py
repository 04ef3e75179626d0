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


def devices_listed(turn: Turn, node: Node) -> None:
    """The node's agent has listed its devices."""
    listed = {use.device: use for use in node.inventory.devices}
    for use in listed.values():
        known = turn.fleet.devices.get(use.device)
        if known is None:
            known = Device(id=use.device, kind=use.kind, name=use.name, node=node.id)
            turn.fleet.devices[use.device] = known
            note(turn, known, f"seen on {node.id}")
        elif known.node != node.id:
            note(turn, known, f"moved from {known.node} to {node.id}")
            known.node = node.id
        elif not known.present:
            note(turn, known, f"listed by {node.id} again")
        known.present, known.name = True, use.name or known.name
    for device in [d for d in turn.fleet.devices.values() if d.node == node.id and d.id not in listed]:
        if device.out is None:
            del turn.fleet.devices[device.id]
        elif device.present:
            device.present = False
            note(turn, device, f"no longer listed by {node.id}")
    node.barred = {d.id: None for d in turn.fleet.devices.values() if d.node == node.id and d.out is not None}


def devices_gone(turn: Turn, node: Node) -> None:
    """The host is gone, and its devices with it."""
    for device in [d for d in turn.fleet.devices.values() if d.node == node.id]:
        if device.out is None:
            del turn.fleet.devices[device.id]
        else:
            device.present = False
