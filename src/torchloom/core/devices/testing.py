"""Tests of devices: asks an agent for one, compares what it measured, and does what follows from the result.

A device that is tested has no worker and gets none meanwhile. A test that could not run says nothing about
the device. One that the device failed makes its health `failing`, so the fleet's policy decides about it; a
test that was a condition (return to use if it passes, out of use if it fails) is followed by that as well.
"""

from __future__ import annotations

from msgspec.structs import replace

from torchloom.core.devices.marks import drain_device, return_device
from torchloom.core.devices.registry import keep_barred, note
from torchloom.core.devices.reported_health import take_in
from torchloom.core.devices.standing import beside
from torchloom.core.devices.users import users
from torchloom.core.turn import Turn
from torchloom.model.device_wear import Consequence, Testing, TestMetric, TestResult
from torchloom.model.devices import Device, HealthClass, HealthReport
from torchloom.model.effects import TestDevice
from torchloom.model.events import DeviceTested, DeviceTestRequested
from torchloom.model.fleet import Fleet, NodeState

KEPT_TESTS = 8
TOO_SLOW = 0.5
"""Shortfall against devices of the same name at which our own test counts as failed."""


def test_requested(turn: Turn, event: DeviceTestRequested) -> None:
    """A person wants it tested. Without effect if a worker has begun to use it meanwhile."""
    device = turn.fleet.devices.get(event.device)
    if device is None or device.testing is not None or why_no_test(turn.fleet, device):
        return
    _start(turn, device, event.by, event.why, event.then)


def why_no_test(fleet: Fleet, device: Device) -> str:
    """Why a device cannot be tested now; empty if it can."""
    node = fleet.nodes.get(device.node)
    if node is None or node.state is not NodeState.READY or not device.present:
        return f"the agent of {device.node} does not answer, or does not list it"
    found = users(fleet, device.id)
    if found:
        return f"workers of {', '.join(dict.fromkeys(job.id for job, _ in found))} use it"
    return ""


def test_when_idle(turn: Turn, device: Device, why: str) -> None:
    """Test it as soon as no worker uses it."""
    device.wants_test = why
    turn.fleet.to_test[device.id] = None


def follow_tests(turn: Turn) -> None:
    """Start the tests that waited for their device to become idle. A device that is idle now is taken even if
    a job waits for room: it is returned within a minute or two."""
    for id in list(turn.fleet.to_test):
        device = turn.fleet.devices.get(id)
        if device is None or not device.wants_test:
            del turn.fleet.to_test[id]
        elif device.testing is None and not why_no_test(turn.fleet, device):
            del turn.fleet.to_test[id]
            why, device.wants_test = device.wants_test, ""
            _start(turn, device, "policy", why, _then(turn.fleet, device))


def _then(fleet: Fleet, device: Device) -> Consequence:
    """What the policy wants after a test. A device that a person took out of use stays out."""
    if device.out is None:
        return "drain"
    by_policy = device.out.how == "drained" and device.out.by == "policy"
    return "return" if by_policy and fleet.device_policy.return_tested else "nothing"


def _start(turn: Turn, device: Device, by: str, why: str, then: Consequence) -> None:
    effect = TestDevice(
        id=turn.next_effect_id(),
        cause=turn.seq,
        reason=f"{by} wants {device.id} tested" + (f": {why}" if why else ""),
        node=device.node,
        device=device.id,
        kind=device.kind,
    )
    device.testing = Testing(effect=effect.id, by=by, why=why, at_ns=turn.now_ns, then=then)
    note(turn, device, "test started", by, why)
    keep_barred(turn, device)
    turn.want(effect)


def device_tested(turn: Turn, event: DeviceTested) -> None:
    turn.close(event.effect)
    device = turn.fleet.devices.get(event.device)
    if device is None or device.testing is None or device.testing.effect != event.effect:
        return
    testing = _ended(turn, device)
    result = _compared(turn.fleet, device, event.result)
    keep_result(turn, device, result)
    if testing.then == "return" and result.passed and device.out is not None:
        if why := _worse_since(device, testing):
            note(turn, device, "not returned", testing.by, why)
        else:
            return_device(turn, device, testing.by, "it passed its test")
    elif testing.then == "drain" and not result.passed and device.out is None:
        drain_device(turn, device, testing.by, f"it failed its test: {result.why}", step_s={})


def _worse_since(device: Device, testing: Testing) -> str:
    """What was reported of the device while it was tested, if that is worse than what the test can show."""
    if device.out is not None and device.out.at_ns > testing.at_ns:
        return f"it was taken out of use during its test ({device.out.describe()})"
    failed = [r for r in device.health.values() if r.level == "failed" and r.at_ns > testing.at_ns]
    return f"{failed[0].source} reported a failure during its test: {failed[0].why}" if failed else ""


def test_did_not_run(turn: Turn, effect: TestDevice, why: str) -> None:
    """Nothing is known about the device; one that waits for its return stays out of use."""
    device = turn.fleet.devices.get(effect.device)
    if device is not None and device.testing is not None and device.testing.effect == effect.id:
        testing = _ended(turn, device)
        note(turn, device, "test could not run", testing.by, why)


def keep_result(turn: Turn, device: Device, result: TestResult) -> None:
    """Record a result; one that is bad is a sign of failing health."""
    result = replace(result, at_ns=turn.now_ns)
    device.tests = [*device.tests, result][-KEPT_TESTS:]
    note(turn, device, "test passed" if result.passed else "test failed", result.source, result.why)
    level: HealthClass = "ok" if result.passed else "failing"
    why = "" if result.passed else f"failed a test: {result.why}"
    source = f"{result.source}-test" if result.source == "loom" else result.source
    report = HealthReport(device=device.id, level=level, why=why, source=source, at_ns=turn.now_ns)
    take_in(turn, device, report)


def _ended(turn: Turn, device: Device) -> Testing:
    assert device.testing is not None
    testing, device.testing = device.testing, None
    keep_barred(turn, device)
    turn.room_appeared = True
    return testing


def _compared(fleet: Fleet, device: Device, result: TestResult) -> TestResult:
    """The result beside those of other devices of the same name."""
    others: dict[str, list[float]] = {}
    for other in fleet.devices.values():
        if other.name != device.name or other.id == device.id:
            continue
        newest = next((one for one in reversed(other.tests) if one.source == result.source), None)
        for metric in newest.metrics if newest is not None else ():
            others.setdefault(metric.name, []).append(metric.value)
    metrics = tuple(beside(m.name, m.value, [m.value, *others.get(m.name, [])]) for m in result.metrics)
    found = replace(result, metrics=metrics)
    slow = [one for one in metrics if one.shortfall >= TOO_SLOW]
    if slow and result.passed:
        return replace(found, passed=False, why=_slow(slow[0]))
    return found


def _slow(metric: TestMetric) -> str:
    return f"{metric.name} is {100 * metric.shortfall:.0f} % worse than the median of devices like it"
