"""Every body the API takes or gives, as typed models. They are the contract of clients; no behaviour.

No answer ever holds a value of a job's environment. Longer than 400 lines because the whole contract is read
in one place; there is nothing to it but fields.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from torchloom.api.schemas.policy import PolicyBody
from torchloom.model.job import MAX_WORKERS

Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$")]
LabelValue = Annotated[str, Field(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]
Text = Annotated[str, Field(max_length=131_072, pattern=r"^[^\x00]*$")]
"""What a process can be given as an argument."""
Path = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]+$")]
JobId = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
State = Literal[
    "waiting", "starting", "running", "recovering", "backoff", "stopping", "completed", "failed", "stopped"
]
VariableName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00=]+$")]
EndState = Literal["completed", "failed", "stopped"]
Number = float | Literal["nan", "inf", "-inf"]
"""A number that the script logged: JSON has no NaN and no infinity, so those are sent by name."""


class Strict(BaseModel):
    """A request: an unknown field, or a number in quotes, is an error; the service does not guess."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ProgramBody(Strict):
    kind: Literal["script", "module", "command"] = "script"
    target: Path
    args: list[Text] = []


class LimitsBody(Strict):
    heartbeat_timeout_s: float | None = Field(default=None, gt=0, le=86_400)
    hang_report_s: float | None = Field(default=None, gt=0, le=86_400)
    hang_act_s: float | None = Field(default=None, gt=0, le=86_400)


class CheckpointBody(Strict):
    directory: Path | None = None
    every: int | None = Field(default=None, ge=1, le=2**53)
    """Steps between two checkpoints."""


class ReplicaBody(Strict):
    """One replica of a torchft job. Its replicas are submitted one by one, each with its index."""

    set: JobId
    """Name of the torchft job."""
    index: int = Field(ge=0, lt=MAX_WORKERS)
    size: int = Field(ge=1, le=MAX_WORKERS)
    """Replicas of the torchft job."""
    min_replicas: int = Field(default=1, ge=1, le=MAX_WORKERS)
    """With fewer replicas, no step is committed."""


class JobRequest(Strict):
    """A job. Everything has a default: `{"world_size": 4}` runs the example that comes with torchloom.

    What runs is one of `script`, `module`, `command` or `program`; how many workers is one of `world_size`,
    `replicas` × `workers`, or `nodes` × `workers_per_node`.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {"world_size": 4},
                {
                    "script": "/home/me/train.py",
                    "args": ["--steps", "1000"],
                    "world_size": 2,
                    "max_restarts": 3,
                    "labels": {"team": "vision"},
                    "env": {"OMP_NUM_THREADS": "1"},
                },
            ]
        },
    )

    name: JobId | None = None
    """Id of the job; made up if it is missing."""
    program: ProgramBody | None = None
    script: Path | None = None
    module: Path | None = None
    command: list[Text] | None = Field(default=None, min_length=1)
    args: list[Text] = []
    """Arguments of the script or module."""
    cwd: Path | None = None
    """Working directory; needed for a script with a relative path."""
    world_size: int | None = Field(default=None, ge=1, le=MAX_WORKERS)
    replicas: int | None = Field(default=None, ge=1, le=MAX_WORKERS)
    workers: int | None = Field(default=None, ge=1, le=MAX_WORKERS)
    """Workers of one replica."""
    workers_per_node: int | None = Field(default=None, ge=1, le=MAX_WORKERS)
    nodes: int | None = Field(default=None, ge=1, le=MAX_WORKERS)
    min_workers: int | None = Field(default=None, ge=1, le=MAX_WORKERS)
    max_workers: int | None = Field(default=None, ge=1, le=MAX_WORKERS)
    standby: int = Field(default=0, ge=0, le=64)
    """Spare places, each for one node's share of workers, to keep free and warm on other nodes."""
    interpreter: str = Field(default="", max_length=4096, pattern=r"^[^\x00]*$")
    replica: ReplicaBody | None = None
    """Makes the job one replica of a torchft job, with a door at the lighthouse of that job."""
    spawn: Literal["warm", "cold"] = "warm"
    preload: list[Text] = []
    max_restarts: int | None = Field(default=None, ge=0, le=100_000)
    """Restarts in the life of the job; 10 by default."""
    max_fruitless: int | None = Field(default=None, ge=0, le=100_000)
    """Restarts in a row without progress (20 steps or a minute), after which the job fails. By default as
    many as `max_restarts`, or 3 if that is missing too."""
    stop_grace_s: float | None = Field(default=None, ge=0, le=86_400)
    pin_cores: bool = False
    log_dir: Annotated[str, Field(max_length=4096, pattern=r"^(/[^\x00]*)?$")] | None = None
    """Absolute path in which each host keeps the workers' output, as `JOB/RANK/stdout.log`."""
    max_steps: int | None = Field(default=None, ge=1, le=2**53)
    """The step after which the job ends; its workers read it as MAX_STEPS."""
    expected_steps: int | None = Field(default=None, ge=1, le=2**53)
    """Known end of the job, for ETA and progress only."""
    limits: LimitsBody = LimitsBody()
    policy: PolicyBody | None = None
    """What to do about findings; if it is missing, the service's own policy file applies."""
    checkpoint: CheckpointBody = CheckpointBody()
    env: dict[str, Text] = {}
    """Kept apart from the job's description, encrypted, and never shown again."""
    env_withheld: list[VariableName] = Field(default=[], max_length=256)
    """Names of variables that the submitter has and the job does not get. If the script fails for lack of
    one, the incident says so."""
    labels: dict[Label, LabelValue] = Field(default={}, max_length=64)
    queue: bool | None = None
    """Wait for room: true always, false never; if it is missing, only when the nodes could hold the job."""


class StopRequest(Strict):
    kill: bool = False
    grace_s: float | None = Field(default=None, ge=0, le=86_400)
    signal: Literal["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"] | None = None
    """The signal that asks the script to end, in place of SIGTERM."""


class JobCreated(BaseModel):
    job: str
    created: bool = True
    """False when the same Idempotency-Key had made it before."""


class PurgeRequest(Strict):
    """Which ended jobs to delete: those that match every given condition."""

    states: list[EndState] = ["completed", "failed", "stopped"]
    older_than_s: float = Field(default=7 * 86_400.0, ge=0, le=1e10)
    """Seconds since the job ended; a week by default."""
    labels: dict[Label, LabelValue] = {}
    keep_logs: bool = False
    keep_checkpoints: bool = True
    dry_run: bool = False


class PurgeResult(BaseModel):
    jobs: list[str]
    """What was deleted, or would be."""
    kept: dict[str, str] = {}
    """Jobs that stay because their checkpoints could not be removed, and why."""
    dry_run: bool


class Problem(BaseModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    """The part of the request that is wrong."""
    fault: str | None = None
    """What is wrong with it: `detail` without the name of the field."""


class LoginRequest(Strict):
    """Either of the two."""

    token: str | None = Field(default=None, min_length=1, max_length=512)
    code: str | None = Field(default=None, min_length=1, max_length=512)
    """Of `/login/link`; it opens one session."""


class LoginLink(BaseModel):
    code: str
    valid_s: float
    page: bool
    """Whether this service has the page; without it the code is of no use."""


Role = Literal["admin", "operator", "read"]
"""An operator may do everything with jobs but inject faults; tokens are an admin's."""


class Identity(BaseModel):
    name: str
    role: Role


class TokenRequest(Strict):
    name: JobId
    role: Role = "read"


class TokenView(Identity):
    created_at_ns: int


class TokenMade(TokenView):
    token: str
    """Shown this once: only its hash is kept."""


class Health(BaseModel):
    status: Literal["ok", "trouble"] = "ok"
    version: str
    ready: bool
    """Connected and caught up: this service reports the current state."""
    active: bool
    """Holds the lease; of several services one does."""
    troubles: list[str] = []
    """What keeps the service from acting, in sentences."""
    stuck_s: float = 0.0
    """For how long the message bus has answered but stored nothing."""


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
    metrics: dict[str, Number]
    exit: str
    """How it ended, in words; empty while it runs."""
    blind: str
    """Why this worker has no black box, if it has none."""
    log_lost_lines: int = 0
    """Lines and bytes of this rank's output, over all generations, that found no room on the disk."""
    log_lost_bytes: int = 0
    copy_trouble: str = ""
    """Why no other node has a copy of its newest state in memory, if one should."""


class TimelineView(BaseModel):
    """Wall-clock nanoseconds; 0 means not (yet)."""

    fault_ns: int
    first_sign_ns: int
    """When peers began to wait, or the first sign that a detector saw."""
    detected_ns: int
    decided_ns: int
    stopped_ns: int
    spawned_ns: int
    restored_ns: int
    first_step_ns: int


class DeviceFaultView(BaseModel):
    """The class of a crash that has to do with a device, its driver, memory or communication."""

    kind: str
    """For programs: device-out-of-memory, ecc-error, illegal-address, nccl-remote, xid-79, …"""
    blame: str
    """program, device, driver, network, host or unknown. A device must not simply be tried again."""
    sentence: str
    """What it means, with the numbers of this case."""
    advice: str


class IncidentView(BaseModel):
    id: str
    job: str
    generation: int
    kind: str
    verdict: str
    fault: DeviceFaultView | None
    """Of a crash whose class is known."""
    decision: str
    """The action and its reason, as a sentence made of the three fields below."""
    action: str
    """What is or would be done: report, pause, restart, rollback, evict, promote, drain, or fail, wait,
    continue, restore; empty while nothing is decided."""
    outcome: str
    """Progress of the action: reported, dry-run, refused, pending or done; empty while nothing is decided."""
    reason: str
    culprit: int | None
    """The rank to blame, if it is one."""
    culprits: list[int]
    """All ranks to blame: of several that failed alike or were killed at once, `culprit` is the first."""
    open: bool
    lost_steps: int | None
    recovery_s: float | None
    """From the fault to the first step after it; None until that step."""
    resolution: str
    """How it ended without a recovery, if it did."""
    ended_by: str
    """What ended it in that case: itself, rollback, generation or job."""
    confidence: float | None
    """Confidence between 0 and 1; None for a fault that was observed directly."""
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


class ReplicaView(BaseModel):
    id: str
    index: int
    state: Literal["running", "starting", "stopping", "exited"]
    """That of its worst worker."""
    workers: int
    running_workers: int
    step: int
    phase: str
    """Of the worker that is furthest behind."""
    last_loss: Number | None


class JobSummary(BaseModel):
    id: str
    state: str
    reason: str
    ended: bool
    generation: int
    restarts: int
    max_restarts: int
    fruitless: int
    """Restarts in a row without progress."""
    max_fruitless: int
    """The most restarts in a row without progress; the next failure ends the job."""
    world_size: int
    """Ranks of the present generation."""
    wanted_workers: int
    """How many it should have; more than `world_size` when it had to start with fewer."""
    standby: int
    spares: list[str]
    """Nodes that keep a place free for it: `standby` of them, or as many as were found."""
    running_workers: int
    step: int
    """The training step if the script reports it, else completed steps of this generation."""
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
    open_incidents: list[str]
    labels: dict[str, str]
    max_steps: int | None
    progress: float | None
    """Share of the known end that is done, 0 to 1."""
    samples_per_s: float | None
    """As the script reports it with loom.log(samples_per_s=…), summed over all ranks."""
    last_loss: Number | None
    """As the script reports it with loom.log(loss=…), mean over the ranks."""
    replicas: list[ReplicaView]
    checkpoint_step: int | None
    """Training step of the newest complete checkpoint; null if none was reported."""
    checkpoint_interval: int | None
    """Steps between two saves, as chosen last."""
    restoring: int | None
    """The step that a restore in progress goes back to."""
    paused: bool
    """All ranks are paused at one step boundary, on request."""
    config_version: int
    """Version of the settings in force; 0: none was ever changed."""
    operation: str
    """Id of the operation in progress; empty: none."""


class JobDetail(JobSummary):
    seq: int
    """State of the fleet that this answer shows; send it as `after` to wait for a newer one."""
    spawn: str
    interpreter: str
    cwd: str
    args: list[str]
    env_names: list[str]
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


class LogLine(BaseModel):
    rank: int
    at_ns: int
    """When it was printed, to within 20 ms for up to 8 ranks per host, less exactly long ago; 0: unknown."""
    text: str
    """With its line end, if it has one."""


class LogLines(BaseModel):
    """The data of a `log` event of the log stream."""

    rank: int
    text: str
    lost_bytes: int
    at_ns: int
    """When these lines were printed; 0: unknown."""


class UnfinishedLine(BaseModel):
    """The data of an `unfinished` event: a line without an end, for instance a progress bar as it is now."""

    rank: int
    text: str


class LogEnd(BaseModel):
    """The data of the `end` event, the last one of a log stream."""

    state: str
    unread_ranks: list[int]
    """Ranks whose node did not answer, so that the rest of their log is missing."""


class JobLogs(BaseModel):
    job: str
    logs: list[LogView]
    lines: list[LogLine] = []
    """With `interleaved`: the lines of all ranks in the order in which they were printed."""


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


class LeavingView(BaseModel):
    """A job that is to leave a drained node or device."""

    job: str
    note: str
    """How far the move is, or why the job cannot leave."""
    stays: bool
    """The job cannot leave at present."""


class NodeView(BaseModel):
    id: str
    state: str
    reason: str
    hostname: str
    address: str
    max_workers: int
    workers: int
    drained: str
    """Who drained the node, and why; empty: it takes new workers."""
    leaving: list[LeavingView]
    """Jobs that still have workers there and are about to move."""
    spare: dict[str, int]
    """Slots that are kept free, by the job they are on standby for."""
    devices: list[DeviceView]
    seen_s: float | None
    """Seconds since the last heartbeat."""
    dropped_messages: int = 0
    """Messages beyond the agent's share that this service dropped since it was started."""
    pod: str = ""
    """Namespace and name of the pod that it is; empty: none that Kubernetes vouched for."""


class DrainRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    why: str = Field(default="", max_length=500)
    keep: bool = False
    """Leave running workers where they are."""
    force: bool = False
    """Also move jobs that cannot be saved first: they resume from their newest checkpoint."""


class JobChangeView(BaseModel):
    id: str
    state: str
    reason: str
    generation: int


class IncidentChangeView(BaseModel):
    id: str
    job: str
    kind: str
    verdict: str
    decision: str
    open: bool
    resolution: str
    action: str
    outcome: str


class EventView(BaseModel):
    """The data of one server-sent event; its `event` is the first topic and its `id` is `seq`."""

    seq: int
    at_ns: int
    kind: str
    topics: list[Literal["job", "worker", "incident", "node", "device", "config", "system"]]
    text: str
    job: str
    node: str
    rank: int | None
    by: str
    jobs: list[JobChangeView]
    incidents: list[IncidentChangeView]


class ResetView(BaseModel):
    """The data of a `reset` event: earlier events are no longer kept, so read everything again."""

    seq: int
    reason: str
