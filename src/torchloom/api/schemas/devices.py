"""Bodies of the routes about devices."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from torchloom.api.schemas.bodies import LeavingView, Strict
from torchloom.model.devices import DeviceAction, HealthClass

DeviceState = Literal["available", "draining", "drained", "failed", "absent"]


class DeviceUser(BaseModel):
    job: str
    rank: int
    replica: str
    worker: str
    pid: int


class DeviceEntry(BaseModel):
    device: str
    kind: str
    name: str
    node: str
    workers: list[DeviceUser]
    replicas: list[str]
    state: DeviceState
    """`available`: may get workers. `draining`: its jobs are leaving. `drained`, `failed`: out of use until
    somebody returns it. `absent`: out of use, and its agent no longer lists it."""
    out: str
    """Who took it out of use, and why; empty: nobody did."""
    out_at_ns: int
    health: HealthClass
    """The worst that a source says."""
    health_why: str


class WorkerDevices(BaseModel):
    worker: str
    job: str
    rank: int
    replica: str
    node: str
    devices: list[str]


class DeviceMap(BaseModel):
    """The same relation in both directions."""

    devices: list[DeviceEntry]
    workers: list[WorkerDevices]


class HealthView(BaseModel):
    source: str
    level: HealthClass
    why: str
    at_ns: int


class ReadingView(BaseModel):
    """The newest measurements of one source. Not recorded."""

    source: str
    index: int | None
    values: dict[str, float]
    states: list[str]
    processes: list[int]
    error: str


class DeviceNoteView(BaseModel):
    at_ns: int
    what: str
    by: str
    why: str


class DeviceDetail(DeviceEntry):
    reports: list[HealthView]
    """What each source says that does not call the device ok."""
    readings: list[ReadingView]
    leaving: list[LeavingView]
    """Jobs that are to leave it, and how far they are."""
    history: list[DeviceNoteView]
    """Oldest first."""


class DeviceFailure(Strict):
    why: str = Field(default="", max_length=500)
    dry_run: bool = False
    """Only answer what would happen."""


class DeviceDrainRequest(DeviceFailure):
    force: bool = False
    """Also move jobs that cannot be saved first: they resume from their newest checkpoint."""


class DeviceReturn(Strict):
    why: str = Field(default="", max_length=500)


class AffectedJobView(BaseModel):
    job: str
    ranks: list[int]
    outcome: str


class DeviceMarkView(BaseModel):
    device: str
    dry_run: bool
    affected: list[AffectedJobView]
    """Jobs with a worker on the device, and what happens to each. No other job is touched."""


class HealthRequest(Strict):
    """What an external monitor says of a device."""

    level: HealthClass
    source: str = Field(min_length=1, max_length=64, pattern=r"^[\w.:-]+$")
    """Name of the monitor. Its newest report replaces its last one."""
    why: str = Field(default="", max_length=500)
    values: dict[str, float] = Field(default={}, max_length=64)
    """Measurements, in base units, by name."""


class HealthAccepted(BaseModel):
    device: str
    recorded: bool
    """Whether the class changed. Repetitions, and changes beyond the rate, are not recorded."""


class DevicePolicyBody(Strict):
    rules: dict[HealthClass, DeviceAction] = Field(default={})
    """Class of health → action. By default a failed device is failed, anything else is reported."""
    dry_run: bool = False
    acts_per_hour: int = Field(default=8, ge=0, le=10_000)
    """Devices that the policy may take out of use within an hour; beyond that their health is reported."""
