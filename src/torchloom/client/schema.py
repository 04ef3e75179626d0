"""Made by scripts/make_client.py from the OpenAPI description.

Every body as a type; may have over 400 lines.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class BoxView(TypedDict):
    rank: int
    found: bool
    collectives: list[dict[str, Any]]
    steps: list[dict[str, int]]
    groups: list[dict[str, Any]]
    hyperparameters: dict[str, Any] | list[Any]
    metrics: dict[str, Any]
    torn: int
    error: str


class DeviceEntry(TypedDict):
    device: str
    kind: str
    name: str
    node: str
    workers: list[DeviceUser]
    replicas: list[str]


class DeviceMap(TypedDict):
    """The same relation in both directions."""

    devices: list[DeviceEntry]
    workers: list[WorkerDevices]


class DeviceUser(TypedDict):
    job: str
    rank: int
    replica: str
    worker: str
    pid: int


class DeviceView(TypedDict):
    device: str
    kind: str
    name: str


class ExitView(TypedDict):
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


class Health(TypedDict):
    status: Literal["ok"]
    version: str
    ready: bool
    active: bool


class IncidentDetail(TypedDict):
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
    timeline: TimelineView
    exits: list[ExitView]


class IncidentView(TypedDict):
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
    timeline: TimelineView


class JobCreated(TypedDict):
    job: str


class JobDetail(TypedDict):
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
    step_is_training: bool
    total_steps: int | None
    steps_per_s: float
    eta_s: float | None
    goodput: float | None
    elapsed_s: float
    submitted_at_ns: int
    started_at_ns: int
    ended_at_ns: int
    by: str
    program: str
    incidents: list[str]
    seq: int
    spawn: str
    interpreter: str
    cwd: str
    args: list[str]
    env_names: list[str]
    labels: dict[str, str]
    workers: list[WorkerView]
    incident_list: list[IncidentView]


class JobLogs(TypedDict):
    job: str
    logs: list[LogView]


class JobRequest(TypedDict):
    name: NotRequired[str | None]
    program: ProgramBody
    cwd: str
    workers_per_node: NotRequired[int]
    nodes: NotRequired[int]
    interpreter: NotRequired[str]
    spawn: NotRequired[Literal["warm", "cold"]]
    preload: NotRequired[list[str]]
    max_restarts: NotRequired[int | None]
    stop_grace_s: NotRequired[float | None]
    pin_cores: NotRequired[bool]
    expected_steps: NotRequired[int | None]
    env: NotRequired[dict[str, str]]
    labels: NotRequired[dict[str, str]]


class JobSummary(TypedDict):
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
    step_is_training: bool
    total_steps: int | None
    steps_per_s: float
    eta_s: float | None
    goodput: float | None
    elapsed_s: float
    submitted_at_ns: int
    started_at_ns: int
    ended_at_ns: int
    by: str
    program: str
    incidents: list[str]


class JobTelemetry(TypedDict):
    job: str
    generation: int
    workers: list[BoxView]


class LogView(TypedDict):
    rank: int
    text: str
    offset: int
    next_offset: int
    lost_bytes: int
    error: str


class NodeView(TypedDict):
    id: str
    state: str
    reason: str
    hostname: str
    address: str
    max_workers: int
    workers: int
    devices: list[DeviceView]
    seen_s: float | None


class ProgramBody(TypedDict):
    kind: NotRequired[Literal["script", "module", "command"]]
    target: str
    args: NotRequired[list[str]]


class StopRequest(TypedDict):
    kill: NotRequired[bool]
    grace_s: NotRequired[float | None]


class TimelineView(TypedDict):
    """Wall-clock nanoseconds; 0 means not (yet)."""

    fault_ns: int
    detected_ns: int
    decided_ns: int
    stopped_ns: int
    spawned_ns: int
    first_step_ns: int


class WorkerDevices(TypedDict):
    worker: str
    job: str
    rank: int
    replica: str
    node: str
    devices: list[str]


class WorkerView(TypedDict):
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
    blind: str
