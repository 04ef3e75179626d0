"""Takes a device out of use and returns it, and does to the jobs on it what follows from that.

A failed device: the generation of each job with a worker there ends at once, and the next one is placed
without the device: on another one, on its standby, smaller, or later. That does not count as a restart of the
job, which is not at fault. A drained device: its jobs are saved first and leave at a step boundary
(core/placement/drain.py). Jobs without a worker on the device are not touched.
"""

from __future__ import annotations

from torchloom.core.detect.words import ranks_text
from torchloom.core.devices.registry import keep_barred, note
from torchloom.core.devices.users import jobs_on, users
from torchloom.core.placement.drain import leave_device
from torchloom.core.recovery.budget import made_progress
from torchloom.core.recovery.generation_end import end_generation, settle
from torchloom.core.recovery.incidents import open_incident
from torchloom.core.turn import Turn
from torchloom.model.devices import Device, OutOfUse
from torchloom.model.events import DeviceMarked
from torchloom.model.fleet import Job, JobState, RestartPlan

DEVICE_FAILED = "device-failed"


def device_marked(turn: Turn, event: DeviceMarked) -> None:
    """A person or a program decided about a device."""
    device = turn.fleet.devices.get(event.device)
    if device is None:
        return
    match event.mark:
        case "fail":
            fail_device(turn, device, event.by, event.why)
        case "drain":
            drain_device(turn, device, event.by, event.why, force=event.force, step_s=event.step_s)
        case "return":
            return_device(turn, device, event.by, event.why)


def fail_device(turn: Turn, device: Device, by: str, why: str) -> None:
    """Nothing can run on it: replace its workers now."""
    if device.out is not None and device.out.how == "failed":
        return
    affected = jobs_on(turn.fleet, device.id)
    _take_out(turn, device, OutOfUse(how="failed", by=by, why=why, at_ns=turn.now_ns))
    for job in affected:
        if job.state in (JobState.STARTING, JobState.RUNNING):
            _replace(turn, job, device, why)


def drain_device(
    turn: Turn, device: Device, by: str, why: str, *, force: bool = False, step_s: dict[str, float]
) -> None:
    """It still works: its jobs leave in good order."""
    if device.out is not None and device.out.how == "failed":
        return
    _take_out(turn, device, OutOfUse(how="drained", by=by, why=why, at_ns=turn.now_ns))
    reason = f"{by} drains {device.id}" + (f": {why}" if why else "")
    for job in jobs_on(turn.fleet, device.id):
        leave_device(turn, job, device, by, reason, force=force, step_s=step_s.get(job.id, 0.0))


def return_device(turn: Turn, device: Device, by: str, why: str) -> None:
    """It gets workers again. A job that was about to leave stays; one that is ending comes back."""
    if device.out is None:
        return
    device.out, device.health, device.wants_test = None, {}, ""
    note(turn, device, "returned", by, why)
    keep_barred(turn, device)
    turn.room_appeared = True


def _take_out(turn: Turn, device: Device, out: OutOfUse) -> None:
    device.out = out
    note(turn, device, out.how, out.by, out.why)
    keep_barred(turn, device)
    turn.seats_changed = True


def _replace(turn: Turn, job: Job, device: Device, why: str) -> None:
    ranks = ranks_text(worker.ref.rank for one, worker in users(turn.fleet, device.id) if one is job)
    cause = f"{device.id} of {device.node} failed" + (f" ({why})" if why else "") + f"; it ran {ranks}"
    incident = open_incident(turn, job, DEVICE_FAILED, cause, turn.now_ns)
    incident.node = device.node
    ran_s = (turn.now_ns - job.generation_at_ns) / 1e9
    progress = made_progress(job.spec.restarts, job.control.step, ran_s)
    reason = f"continues without {device.id}; that does not count as a restart of the job"
    job.plan = RestartPlan(True, 0.0, reason, progress, free=True)
    why_end = f"{device.id} failed, so generation {job.generation} cannot continue"
    end_generation(turn, job, incident, why_end)
    settle(turn, job)
