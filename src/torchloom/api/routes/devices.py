"""Routes about devices: who uses them, how they are, and taking them out of use."""

from __future__ import annotations

from fastapi import APIRouter, Request
from msgspec import structs

from torchloom.api.access_guard import caller
from torchloom.api.ports import Control
from torchloom.api.schemas.devices import (
    AffectedJobView,
    DeviceDetail,
    DeviceDrainRequest,
    DeviceFailure,
    DeviceMap,
    DeviceMarkView,
    DevicePolicyBody,
    DeviceReturn,
    DeviceTestAccepted,
    DeviceTestRequest,
    HealthAccepted,
    HealthRequest,
    ImportedTest,
    TestImport,
    TestImported,
)
from torchloom.api.views.devices import device_detail, device_map
from torchloom.model.device_wear import TestMetric, TestResult
from torchloom.model.devices import DeviceMark, DevicePolicy, DeviceReading, HealthReport


def routes(control: Control) -> APIRouter:
    router = APIRouter(tags=["fleet"])

    @router.get("/devices", operation_id="devices")
    async def devices() -> DeviceMap:
        """Every device with the workers on it, and every worker with its devices."""
        return device_map(control.fleet)

    @router.get("/devices/{device}", operation_id="device")
    async def one_device(device: str) -> DeviceDetail:
        """One device, with its health, its measurements and its history.

        `device` is its id, or the beginning of it that no other device has, here and below.
        """
        return _detail(control, device)

    @router.post("/devices/{device}/failures", operation_id="failDevice")
    async def fail_device(device: str, body: DeviceFailure, request: Request) -> DeviceMarkView:
        """Report that a device failed. The jobs with a worker on it are restarted without it at once: on
        another device, on their standby or with fewer workers; a job without room waits. That does not count
        against their restarts. The device gets no worker until it is returned."""
        return await _mark(control, device, "fail", body, request)

    @router.post("/devices/{device}/drain", operation_id="drainDevice")
    async def drain_device(device: str, body: DeviceDrainRequest, request: Request) -> DeviceMarkView:
        """Take a working device out of use: its jobs are saved, stopped at a step boundary, and resumed
        without it. A job that has no room elsewhere or cannot be saved stays and keeps training; `leaving`
        of the device says why. Returning the device cancels it."""
        return await _mark(control, device, "drain", body, request, force=body.force)

    @router.post("/devices/{device}/return", operation_id="returnDevice")
    async def return_device(device: str, body: DeviceReturn, request: Request) -> DeviceDetail:
        """Allow workers on a device again, or cancel its drain. With `test` it is tested first, for some
        seconds, and returned only if it passes; its state is `testing` meanwhile."""
        if body.test:
            id = await control.devices.test(device, caller(request), body.why, then_return=True)
            return _detail(control, id)
        id, _ = await control.devices.mark(device, "return", caller(request), body.why, dry_run=False)
        return _detail(control, id)

    @router.post("/devices/{device}/test", status_code=202, operation_id="testDevice")
    async def test_device(device: str, body: DeviceTestRequest, request: Request) -> DeviceTestAccepted:
        """Test a device that no worker uses: compute, memory and communication, each result checked, for
        some seconds. It gets no worker meanwhile. The result is in its `tests`; one that it failed makes its
        health `failing`."""
        id = await control.devices.test(device, caller(request), body.why, then_return=False)
        return DeviceTestAccepted(device=id)

    @router.post("/device-tests", status_code=201, operation_id="importTests")
    async def import_tests(body: TestImport, request: Request) -> TestImported:
        """Record results of tests that ran elsewhere, for example of SuperBench. One that did not pass makes
        the device's health `failing`."""
        results = [(one.node, one.gpu, _result(body.source, one)) for one in body.results]
        devices, unknown = await control.devices.import_tests(results, caller(request))
        return TestImported(devices=devices, unknown=unknown)

    @router.post("/devices/{device}/health", status_code=202, operation_id="reportHealth")
    async def report_health(device: str, body: HealthRequest, request: Request) -> HealthAccepted:
        """For external monitors: report a device's class of health. The class is recorded when it changes,
        and the policy for devices decides what follows; `failed` replaces the workers on it by default."""
        id = control.devices.find(device)
        report = HealthReport(device=id, level=body.level, why=body.why, source=body.source)
        reading = DeviceReading(device=id, source=body.source, values=body.values) if body.values else None
        recorded = await control.devices.health(id, report, reading, caller(request))
        return HealthAccepted(device=id, recorded=recorded)

    @router.get("/device-policy", operation_id="devicePolicy")
    async def policy() -> DevicePolicyBody:
        """What is done when a device's health gets worse."""
        return _policy(control)

    @router.put("/device-policy", operation_id="setDevicePolicy")
    async def set_policy(body: DevicePolicyBody, request: Request) -> DevicePolicyBody:
        """Set what is done when a device's health gets worse: `ignore`, `report`, `drain` or `fail`."""
        policy = DevicePolicy(
            rules={str(level): action for level, action in body.rules.items()},
            dry_run=body.dry_run,
            acts_per_hour=body.acts_per_hour,
            at_risk=body.at_risk,
            risk=body.risk,
            return_tested=body.return_tested,
        )
        await control.devices.set_policy(policy, caller(request))
        return _policy(control)

    return router


def _policy(control: Control) -> DevicePolicyBody:
    found = control.fleet.device_policy
    return DevicePolicyBody.model_validate(structs.asdict(found))


def _result(source: str, body: ImportedTest) -> TestResult:
    metrics = tuple(TestMetric(**one.model_dump()) for one in body.metrics)
    return TestResult(
        source=source, passed=body.passed, why=body.why, metrics=metrics, measured=body.measured
    )


def _detail(control: Control, name: str) -> DeviceDetail:
    id = control.devices.find(name)
    return device_detail(control.fleet, control.fleet.devices[id], control.devices.readings(id))


async def _mark(
    control: Control,
    device: str,
    mark: DeviceMark,
    body: DeviceFailure,
    request: Request,
    force: bool = False,
) -> DeviceMarkView:
    id, affected = await control.devices.mark(
        device, mark, caller(request), body.why, force=force, dry_run=body.dry_run
    )
    jobs = [AffectedJobView(job=one.job, ranks=list(one.ranks), outcome=one.outcome) for one in affected]
    return DeviceMarkView(device=id, dry_run=body.dry_run, affected=jobs)
