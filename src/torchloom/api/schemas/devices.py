"""Bodies of the routes about devices."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, FiniteFloat

from torchloom.api.schemas.bodies import LeavingView, Strict
from torchloom.model.devices import DeviceAction, HealthClass, RiskAction

DeviceState = Literal["available", "draining", "drained", "failed", "absent", "testing"]


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
    somebody returns it. `absent`: out of use, and its agent no longer lists it. `testing`: a test runs on it,
    and it gets no worker meanwhile."""
    out: str
    """Who took it out of use, and why; empty: nobody did."""
    out_at_ns: int
    health: HealthClass
    """The worst that a source says."""
    health_why: str
    risk: float | None
    """Probability that it fails within a day, by a simple model; null: not enough data."""
    risk_why: str
    """What raises it, or what is missing."""
    at_risk: bool
    """Its risk reached the limit of the policy, and has not fallen below half of that since."""
    testing: str
    """Who asked for the test that runs on it now, and why; empty: none runs."""
    wants_test: str
    """Why it is to be tested as soon as no worker uses it; empty: it is not."""


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


class DriverView(BaseModel):
    """One reason for a device's risk."""

    feature: str
    value: float
    weight: float
    """What it adds to the log-odds."""
    says: str


class TestMetricView(BaseModel):
    __test__ = False

    name: str
    value: float
    median: float | None
    """Of all devices it was compared with; null: too few."""
    worse: float | None
    """Share of the other devices whose value is worse."""
    shortfall: float
    """How much worse than the median, as a share of it; 0 within the usual spread."""


class TestView(BaseModel):
    """A test of a device."""

    __test__ = False

    source: str
    passed: bool
    why: str
    at_ns: int
    measured: int
    """How many metrics there were; `metrics` has the worst ones."""
    metrics: list[TestMetricView]


class DeviceDetail(DeviceEntry):
    drivers: list[DriverView]
    """What raises its risk, the strongest first."""
    tests: list[TestView]
    """Oldest first."""
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
    test: bool = False
    """Test it first, and return it only if it passes."""


class AffectedJobView(BaseModel):
    job: str
    ranks: list[int]
    outcome: str


class DeviceMarkView(BaseModel):
    device: str
    dry_run: bool
    affected: list[AffectedJobView]
    """Jobs with a worker on the device, and what happens to each. No other job is touched."""


class DeviceTestRequest(Strict):
    why: str = Field(default="", max_length=500)


class DeviceTestAccepted(BaseModel):
    device: str
    """Its state is `testing` until the result is in `tests`."""


class ImportedMetric(Strict):
    name: str = Field(min_length=1, max_length=200)
    value: FiniteFloat
    median: FiniteFloat | None = None
    worse: float | None = Field(default=None, ge=0, le=1)
    shortfall: float = Field(default=0.0, ge=0, le=1)


class ImportedTest(Strict):
    """The result of a test that ran elsewhere."""

    node: str = Field(min_length=1, max_length=253)
    """Id of a node, or its host's name."""
    gpu: int | None = Field(default=None, ge=0, le=4096)
    """Number of the GPU on that node; null: all devices of the node."""
    passed: bool
    why: str = Field(default="", max_length=500)
    measured: int = Field(default=0, ge=0)
    metrics: list[ImportedMetric] = Field(default=[], max_length=16)


class TestImport(Strict):
    __test__ = False

    source: str = Field(min_length=1, max_length=64, pattern=r"^[\w.:-]+$")
    results: list[ImportedTest] = Field(max_length=50)


class TestImported(BaseModel):
    __test__ = False

    devices: list[str]
    """Devices that results were recorded for."""
    unknown: list[str]
    """Nodes, or GPUs of nodes, that nobody knows; nothing was recorded for them."""


class HealthRequest(Strict):
    """What an external monitor says of a device."""

    level: HealthClass
    source: str = Field(min_length=1, max_length=64, pattern=r"^[\w.:-]+$")
    """Name of the monitor. Its newest report replaces its last one."""
    why: str = Field(default="", max_length=500)
    values: dict[Annotated[str, Field(max_length=64)], FiniteFloat] = Field(default={}, max_length=64)
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
    """Devices that the policy may take out of use or test within an hour; beyond that it only reports."""
    at_risk: RiskAction = "report"
    """What is done about a device whose risk reaches `risk`: `ignore`, `report`, `test` it when it is idle
    and drain it if it fails, or `drain` it and test it then."""
    risk: float = Field(default=0.1, gt=0, le=1)
    return_tested: bool = False
    """Return a device that was drained because of its risk to use if it passes its test."""
