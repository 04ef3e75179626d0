"""What taking a device out of use would do to the jobs on it. Changes nothing."""

from __future__ import annotations

from msgspec import Struct

from torchloom.core.devices.users import users
from torchloom.core.placement.drain import others_hold_state
from torchloom.core.placement.place import why_no_room
from torchloom.model.devices import DeviceMark
from torchloom.model.fleet import Fleet, Job, JobState


class AffectedJob(Struct, frozen=True):
    job: str
    ranks: tuple[int, ...]
    outcome: str
    """What would happen to it, in words."""


def preview(fleet: Fleet, device: str, mark: DeviceMark) -> list[AffectedJob]:
    """Jobs with a worker on the device, and what the mark would do to each."""
    found: dict[str, tuple[Job, list[int]]] = {}
    for job, worker in users(fleet, device):
        found.setdefault(job.id, (job, []))[1].append(worker.ref.rank)
    return [AffectedJob(n, tuple(r), _outcome(fleet, j, device, mark)) for n, (j, r) in found.items()]


def _outcome(fleet: Fleet, job: Job, device: str, mark: DeviceMark) -> str:
    known = fleet.devices[device]
    if mark == "return" or (known.out is not None and known.out.how == "failed"):
        return "nothing changes"
    no_room = why_no_room(fleet, job, device="" if known.out else device, where="other devices")
    if mark == "fail":
        if job.state not in (JobState.STARTING, JobState.RUNNING):
            return f"it is {job.state}; its next start avoids the device"
        if no_room:
            return f"its workers end at once, and it waits: {no_room}"
        return "its workers end at once, and it resumes on other devices"
    if not no_room and others_hold_state(fleet, job):
        return "it resumes on other devices and takes its state from the other replicas"
    if job.checkpoints is None:
        return "it stays: it has reported no checkpoints, so it would start over; --force moves it anyway"
    return f"it stays: {no_room}" if no_room else "it is saved and resumes on other devices"
