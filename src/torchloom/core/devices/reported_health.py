"""Takes in what sources conclude about devices, and acts on what became worse, as the policy says.

A source speaks for itself: its newest report replaces its last one, and the worst of all sources counts. A
device whose health is better again stays out of use until a person returns it.
"""

from __future__ import annotations

from msgspec.structs import replace

from torchloom.core.devices.health_policy import KEPT_ACTS, choose_action
from torchloom.core.devices.marks import drain_device, fail_device
from torchloom.core.devices.registry import note
from torchloom.core.devices.users import users
from torchloom.core.turn import Turn
from torchloom.model.devices import CLASSES, Device, DeviceAct, HealthClass, HealthReport
from torchloom.model.events import DeviceHealthReported, DevicePolicySet

MOST_SOURCES = 16


def health_reported(turn: Turn, event: DeviceHealthReported) -> None:
    for report in event.health:
        device = turn.fleet.devices.get(report.device)
        if device is not None and device.node == event.node:
            take_in(turn, device, replace(report, at_ns=turn.now_ns))


def policy_set(turn: Turn, event: DevicePolicySet) -> None:
    turn.fleet.device_policy = event.policy


def worst(device: Device) -> HealthReport | None:
    """The report that counts; None if no source complains."""
    found = sorted(device.health.values(), key=lambda one: (-CLASSES.index(one.level), one.source))
    return found[0] if found else None


def level_of(device: Device) -> HealthClass:
    counts = worst(device)
    return counts.level if counts is not None else "ok"


def take_in(turn: Turn, device: Device, report: HealthReport) -> None:
    """A source's newest report replaces its last one; the policy acts if that makes the device worse."""
    before = level_of(device)
    said = device.health.pop(report.source, None)
    if report.level != "ok" and len(device.health) < MOST_SOURCES:
        device.health[report.source] = report
    if report.level != (said.level if said is not None else "ok"):
        note(turn, device, report.level, report.source, report.why)
    now = level_of(device)
    if CLASSES.index(now) > CLASSES.index(before):
        _act(turn, device, now, report)


def _act(turn: Turn, device: Device, level: HealthClass, report: HealthReport) -> None:
    if device.out is not None and (device.out.how == "failed" or not users(turn.fleet, device.id)):
        return  # nobody is left on it, and who took it out of use and why stays known
    action, instead = choose_action(turn.fleet, level, turn.now_ns)
    if instead:
        note(turn, device, instead, "policy", report.why)
    if action in ("ignore", "report") or (action == "drain" and device.out is not None):
        return
    acts = [*turn.fleet.device_acts, DeviceAct(device.id, action, turn.now_ns)]
    turn.fleet.device_acts = acts[-KEPT_ACTS:]
    why = f"{report.source}: {report.why}" if report.why else report.source
    if action == "fail":
        fail_device(turn, device, "policy", why)
    else:
        drain_device(turn, device, "policy", why, step_s={})
