"""Devices and their users, as the API answers. Only workers whose process may exist count."""

from __future__ import annotations

from collections.abc import Iterable

from torchloom.api.schemas.bodies import LeavingView
from torchloom.api.schemas.devices import (
    DeviceDetail,
    DeviceEntry,
    DeviceMap,
    DeviceNoteView,
    DeviceState,
    DeviceUser,
    DriverView,
    HealthView,
    ReadingView,
    TestMetricView,
    TestView,
    WorkerDevices,
)
from torchloom.core.devices.hazard import risk
from torchloom.core.devices.reported_health import level_of, worst
from torchloom.core.devices.users import users
from torchloom.model.device_wear import TestResult
from torchloom.model.devices import Device, DeviceReading
from torchloom.model.fleet import Fleet, Job, Worker
from torchloom.model.ids import replica_id, worker_id


def device_map(fleet: Fleet) -> DeviceMap:
    """Device → workers and replicas, and worker → devices."""
    entries = {device.id: _entry(device, fleet.now_ns) for device in fleet.devices.values()}
    workers: list[WorkerDevices] = []
    for job in fleet.jobs.values():
        for worker in job.workers:
            if not worker.alive:
                continue
            user = _user(job, worker)
            for use in worker.devices:
                unlisted = Device(id=use.device, kind=use.kind, name=use.name, node=worker.node)
                entry = entries.setdefault(use.device, _entry(unlisted, fleet.now_ns))
                entry.workers.append(user)
                if user.replica not in entry.replicas:
                    entry.replicas.append(user.replica)
            workers.append(
                WorkerDevices(
                    worker=user.worker,
                    job=job.id,
                    rank=user.rank,
                    replica=user.replica,
                    node=worker.node,
                    devices=[use.device for use in worker.devices],
                )
            )
    for entry in entries.values():
        if entry.state == "drained" and entry.workers:
            entry.state = "draining"
    return DeviceMap(devices=sorted(entries.values(), key=lambda e: (e.node, e.device)), workers=workers)


def device_detail(fleet: Fleet, device: Device, readings: Iterable[DeviceReading]) -> DeviceDetail:
    found = users(fleet, device.id)
    made = [_user(job, worker) for job, worker in found]
    entry = _entry(device, fleet.now_ns)
    entry.workers, entry.replicas = made, list(dict.fromkeys(user.replica for user in made))
    if entry.state == "drained" and made:
        entry.state = "draining"
    found_risk = risk(device.wear, device.tests, fleet.now_ns)
    leaving = {job.id: job.leaving for job, _ in found if job.leaving is not None}
    return DeviceDetail(
        **dict(entry),
        reports=[
            HealthView(source=one.source, level=one.level, why=one.why, at_ns=one.at_ns)
            for one in device.health.values()
        ],
        readings=[
            ReadingView(
                source=one.source,
                index=one.index,
                values=one.values,
                states=list(one.states),
                processes=list(one.processes),
                error=one.error,
            )
            for one in readings
        ],
        drivers=[
            DriverView(feature=one.feature, value=one.value, weight=one.weight, says=one.says)
            for one in found_risk.drivers
        ],
        tests=[_test(one) for one in device.tests],
        leaving=[LeavingView(job=job, note=one.note, stays=one.stays) for job, one in leaving.items()],
        history=[
            DeviceNoteView(at_ns=one.at_ns, what=one.what, by=one.by, why=one.why) for one in device.history
        ],
    )


def _test(result: TestResult) -> TestView:
    return TestView(
        source=result.source,
        passed=result.passed,
        why=result.why,
        at_ns=result.at_ns,
        measured=result.measured,
        metrics=[
            TestMetricView(
                name=one.name,
                value=one.value,
                median=one.median,
                worse=one.worse,
                shortfall=one.shortfall,
            )
            for one in result.metrics
        ],
    )


def _entry(device: Device, now_ns: int) -> DeviceEntry:
    counts, found = worst(device), risk(device.wear, device.tests, now_ns)
    nothing = device.kind == "cpu" and device.wear is None
    return DeviceEntry(
        device=device.id,
        kind=device.kind,
        name=device.name,
        node=device.node,
        workers=[],
        replicas=[],
        state=_state(device),
        out=device.out.describe() if device.out is not None else "",
        out_at_ns=device.out.at_ns if device.out is not None else 0,
        health=level_of(device),
        health_why=counts.why if counts is not None else "",
        risk=found.probability,
        risk_why="nothing is counted on CPU cores" if nothing else found.why,
        at_risk=device.at_risk,
        testing="" if device.testing is None else f"{device.testing.by}: {device.testing.why}".rstrip(": "),
        wants_test=device.wants_test,
    )


def _state(device: Device) -> DeviceState:
    if device.testing is not None:
        return "testing"
    if device.out is None:
        return "available"
    return device.out.how if device.present else "absent"


def _user(job: Job, worker: Worker) -> DeviceUser:
    return DeviceUser(
        job=job.id,
        rank=worker.ref.rank,
        replica=replica_id(job.id, worker.replica),
        worker=worker_id(job.id, worker.ref.rank),
        pid=worker.pid,
    )
