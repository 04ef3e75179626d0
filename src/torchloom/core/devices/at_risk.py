"""Keeps what is counted on devices over days, and acts when one becomes likely to fail, as the policy says.

By default that is recorded and nothing else. Risk is looked at when something new is known about a device,
not by a timer: time alone only lowers it. Tests go through core/devices/testing.py.
"""

from __future__ import annotations

from torchloom.core.device_faults.classify import fault_of
from torchloom.core.devices.hazard import risk
from torchloom.core.devices.health_policy import HOUR_NS, KEPT_ACTS
from torchloom.core.devices.marks import drain_device
from torchloom.core.devices.registry import note
from torchloom.core.devices.testing import keep_result, test_when_idle
from torchloom.core.devices.wear import grown
from torchloom.core.turn import Turn
from torchloom.model.device_wear import WearCounts
from torchloom.model.devices import Device, DeviceAct
from torchloom.model.events import DeviceTestsImported, DeviceWearReported
from torchloom.model.incidents import Incident

LEAVES_AT = 0.5
"""A device is at risk no more when its risk falls below this share of the policy's: it must not flap."""


def wear_reported(turn: Turn, event: DeviceWearReported) -> None:
    for one in event.wear:
        device = turn.fleet.devices.get(one.device)
        if device is not None and device.node == event.node:
            device.wear = grown(device.wear, one.counts, turn.now_ns)
            _look(turn, device)


def tests_imported(turn: Turn, event: DeviceTestsImported) -> None:
    for one in event.results:
        device = turn.fleet.devices.get(one.device)
        if device is not None:
            keep_result(turn, device, one.result)
            _look(turn, device)


def count_blame(turn: Turn, incident: Incident) -> None:
    """A crash that was a fault of a device counts for it; its risk is looked at with its next report."""
    fault = fault_of(incident)
    if fault is None or fault.blame != "device" or not incident.exits:
        return
    for use in incident.exits[0].devices:
        device = turn.fleet.devices.get(use.device)
        if device is not None:
            device.wear = grown(device.wear, WearCounts(blamed=1.0), turn.now_ns)


def _look(turn: Turn, device: Device) -> None:
    policy = turn.fleet.device_policy
    found = risk(device.wear, device.tests, turn.now_ns)
    if found.probability is None or policy.at_risk == "ignore":
        return
    if device.at_risk:
        if found.probability < LEAVES_AT * policy.risk:
            device.at_risk = False
            note(turn, device, "no longer at risk", "prediction")
        return
    if found.probability < policy.risk:
        return
    device.at_risk = True
    percent = f"{100 * found.probability:.0f} %"
    note(turn, device, f"at risk: {percent} to fail within a day", "prediction", found.why)
    if policy.at_risk != "report" and device.out is None and device.testing is None:
        _act(turn, device, f"{percent} to fail within a day: {found.why}")


def _act(turn: Turn, device: Device, why: str) -> None:
    policy = turn.fleet.device_policy
    if policy.dry_run:
        note(turn, device, f"dry run, would {policy.at_risk} it", "policy", why)
        return
    spent = sum(act.at_ns > turn.now_ns - HOUR_NS for act in turn.fleet.device_acts)
    if spent >= policy.acts_per_hour:
        said = f"not acted on: the policy acted on {spent} devices within the last hour"
        note(turn, device, said, "policy", why)
        return
    acts = [*turn.fleet.device_acts, DeviceAct(device.id, policy.at_risk, turn.now_ns)]
    turn.fleet.device_acts = acts[-KEPT_ACTS:]
    test_when_idle(turn, device, why)
    if policy.at_risk == "drain":
        drain_device(turn, device, "policy", why, step_s={})
    else:
        note(turn, device, "to be tested when idle", "policy", why)
