"""Every body the API takes or gives, as typed models. They are the contract of clients; no behaviour.

No answer ever holds a value of a job's environment.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from torchloom.model.job import MAX_WORKERS


class Strict(BaseModel):
    """A request: an unknown field is a mistake of the caller, not something to ignore."""

    model_config = ConfigDict(extra="forbid")


class ProgramBody(Strict):
    kind: Literal["script", "module", "command"] = "script"
    target: str = Field(min_length=1, max_length=4096)
    args: list[str] = []


class JobRequest(Strict):
    name: str | None = None
    """Id of the job; made up if it is missing."""
    program: ProgramBody
    cwd: str = Field(min_length=1, max_length=4096)
    workers_per_node: int = Field(default=1, ge=1, le=MAX_WORKERS)
    nodes: int = Field(default=1, ge=1, le=MAX_WORKERS)
    interpreter: str = ""
    spawn: Literal["warm", "cold"] = "warm"
    preload: list[str] = []
    max_restarts: int | None = Field(default=None, ge=0, le=100_000)
    stop_grace_s: float | None = Field(default=None, ge=0, le=86_400)
    pin_cores: bool = False
    expected_steps: int | None = Field(default=None, ge=1)
    env: dict[str, str] = {}
    """Kept apart from the job's description and never shown again."""
    labels: dict[str, str] = {}


class StopRequest(Strict):
    kill: bool = False
    grace_s: float | None = Field(default=None, ge=0, le=86_400)


class JobCreated(BaseModel):
    job: str


class Health(BaseModel):
    status: Literal["ok"] = "ok"
    version: str
    ready: bool
    """Connected and caught up: what this service says is the present."""
    active: bool
    """Holds the lease; of several services one does."""


class DeviceView(BaseModel):
    device: str
    kind: str
    name: str


class WorkerView(BaseModel):
    rank: int
    replica: int
    node: str
    local_rank: int
    pid: int
    state: str
    incarnation: int
    devices: list[DeviceView]
    steps: int
    step_s: float
    training_step: int | None
    phase: str
    phase_s: float
    idle_s: float
    data_wait_s: float
    collectives: int
    collective: str
    in_collective_s: float
    recorder: str
    metrics: dict[str, float]
    exit: str
    """How it ended, in words; empty while it runs."""
    blind: str
    """Why this worker has no black box, if it has none."""


class TimelineView(BaseModel):
    """Wall-clock nanoseconds; 0 means not (yet)."""

    fault_ns: int
    detected_ns: int
    decided_ns: int
    stopped_ns: int
    spawned_ns: int
    first_step_ns: int


class IncidentView(BaseModel):
    id: str
    job: str
    generation: int
    kind: str
    verdict: str
    decision: str
    culprit: int | None
    open: bool
    lost_steps: int | None
    recovery_s: float | None
    """From the fault to the first step after it; None while that has not come."""
    timeline: TimelineView


class ExitView(BaseModel):
    rank: int
    node: str
    how: str
    code: int | None
    signal: int | None
    source: str
    at_ns: int
    steps: int
    training_step: int | None
    ran_s: float
    secondary: bool
    after_stop: bool
    exception: str
    message: str
    traceback: str
    activity: str
    log_tail: list[str]
    devices: list[DeviceView]


class IncidentDetail(IncidentView):
    exits: list[ExitView]


class JobSummary(BaseModel):
    id: str
    state: str
    reason: str
    ended: bool
    generation: int
    restarts: int
    max_restarts: int
    world_size: int
    running_workers: int
    step: int
    """The training step if the script tells it, else completed steps of this generation."""
    step_is_training: bool
    total_steps: int | None
    steps_per_s: float
    eta_s: float | None
    goodput: float | None
    """Share of the time since the first start that was not lost between a fault and the next step."""
    elapsed_s: float
    submitted_at_ns: int
    started_at_ns: int
    ended_at_ns: int
    by: str
    program: str
    incidents: list[str]


class JobDetail(JobSummary):
    seq: int
    """State of the fleet this answer shows; give it back as `after` to wait for a newer one."""
    spawn: str
    interpreter: str
    cwd: str
    args: list[str]
    env_names: list[str]
    labels: dict[str, str]
    workers: list[WorkerView]
    incident_list: list[IncidentView]


class LogView(BaseModel):
    rank: int
    text: str
    offset: int
    next_offset: int
    lost_bytes: int
    error: str = ""
    """Why this rank's log could not be read."""


class JobLogs(BaseModel):
    job: str
    logs: list[LogView]


class BoxView(BaseModel):
    rank: int
    found: bool
    collectives: list[dict[str, object]] = []
    steps: list[dict[str, int]] = []
    groups: list[dict[str, object]] = []
    hyperparameters: dict[str, object] | list[object] = {}
    metrics: dict[str, object] = {}
    torn: int = 0
    error: str = ""


class JobTelemetry(BaseModel):
    job: str
    generation: int
    workers: list[BoxView]


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


class NodeView(BaseModel):
    id: str
    state: str
    reason: str
    hostname: str
    address: str
    max_workers: int
    workers: int
    devices: list[DeviceView]
    seen_s: float | None
    """Seconds since the last heartbeat."""
