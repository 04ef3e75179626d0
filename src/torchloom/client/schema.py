"""Made by scripts/make_client.py from the OpenAPI description.

Every body as a type; may have over 400 lines.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class AffectedJobView(TypedDict):
    job: str
    ranks: list[int]
    outcome: str


class AuthoritiesView(TypedDict):
    ca: str


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


class ChangePlanView(TypedDict):
    job: str
    operation: str
    dry_run: bool
    differences: list[DifferenceView]
    at_step: int | None
    notes: list[str]


class ChangeRequest(TypedDict):
    """New values for settings of a job: all of them, on all ranks, at one step, or none.

    A value is a number, true or false, a text, a list, an object or null, as the setting's type
    says; a text
    is read as on a command line, so `"1e-4"` is a number for `lr`. `{"own": true}` releases a held
    setting: the script's own value applies again.
    """

    values: dict[str, Any]
    at_step: NotRequired[int | None]
    mode: NotRequired[Literal["hold", "scale"]]
    why: NotRequired[str]
    dry_run: NotRequired[bool]


class CheckpointBody(TypedDict):
    directory: NotRequired[str | None]
    every: NotRequired[int | None]


class CheckpointList(TypedDict):
    job: str
    store: str
    name: str
    node: str
    restored: str
    restored_from: str
    restored_generation: int
    interval: int
    memory_interval: int
    failing: str
    left_out: int
    checkpoints: list[CheckpointView]


class CheckpointView(TypedDict):
    """One checkpoint of a job."""

    name: str
    step: int
    generation: int
    where: str
    whole: bool
    why: str
    verified_ns: int
    pinned: bool
    resumable: bool
    newest: bool
    created_ns: int
    size: int
    world: int
    epoch: int
    config_version: int
    parent: str
    finite: bool
    metrics: dict[str, float]
    lineage: dict[str, str]


class ConfigView(TypedDict):
    job: str
    version: int
    paused: bool
    known: bool
    optimizers: list[str]
    settings: list[SettingView]
    schedule: list[EntryView]
    operations: list[OperationView]


class DecisionView(TypedDict):
    """Something that the core asked for."""

    id: str
    do: str
    node: str
    ranks: list[int]
    who: str
    reason: str
    recorded: Literal["same", "differs", "not recorded"]


class DeviceDetail(TypedDict):
    device: str
    kind: str
    name: str
    node: str
    workers: list[DeviceUser]
    replicas: list[str]
    state: Literal["available", "draining", "drained", "failed", "absent", "testing"]
    out: str
    out_at_ns: int
    health: Literal["ok", "degraded", "failing", "failed"]
    health_why: str
    risk: float | None
    risk_why: str
    at_risk: bool
    testing: str
    wants_test: str
    drivers: list[DriverView]
    tests: list[TestView]
    reports: list[HealthView]
    readings: list[ReadingView]
    leaving: list[LeavingView]
    history: list[DeviceNoteView]


class DeviceDrainRequest(TypedDict):
    why: NotRequired[str]
    dry_run: NotRequired[bool]
    force: NotRequired[bool]


class DeviceEntry(TypedDict):
    device: str
    kind: str
    name: str
    node: str
    workers: list[DeviceUser]
    replicas: list[str]
    state: Literal["available", "draining", "drained", "failed", "absent", "testing"]
    out: str
    out_at_ns: int
    health: Literal["ok", "degraded", "failing", "failed"]
    health_why: str
    risk: float | None
    risk_why: str
    at_risk: bool
    testing: str
    wants_test: str


class DeviceFailure(TypedDict):
    why: NotRequired[str]
    dry_run: NotRequired[bool]


class DeviceFaultView(TypedDict):
    """The class of a crash that has to do with a device, its driver, memory or communication."""

    kind: str
    blame: str
    sentence: str
    advice: str


class DeviceMap(TypedDict):
    """The same relation in both directions."""

    devices: list[DeviceEntry]
    workers: list[WorkerDevices]


class DeviceMarkView(TypedDict):
    device: str
    dry_run: bool
    affected: list[AffectedJobView]


class DeviceNoteView(TypedDict):
    at_ns: int
    what: str
    by: str
    why: str


class DevicePolicyBody(TypedDict):
    rules: NotRequired[dict[str, Literal["ignore", "report", "drain", "fail"]]]
    dry_run: NotRequired[bool]
    acts_per_hour: NotRequired[int]
    at_risk: NotRequired[Literal["ignore", "report", "test", "drain"]]
    risk: NotRequired[float]
    return_tested: NotRequired[bool]


class DeviceReturn(TypedDict):
    why: NotRequired[str]
    test: NotRequired[bool]


class DeviceTestAccepted(TypedDict):
    device: str


class DeviceTestRequest(TypedDict):
    why: NotRequired[str]


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


class DifferenceView(TypedDict):
    """One place that a change sets."""

    address: str
    before: Any
    after: Any


class DrainRequest(TypedDict):
    why: NotRequired[str]
    keep: NotRequired[bool]
    force: NotRequired[bool]


class DriverView(TypedDict):
    """One reason for a device's risk."""

    feature: str
    value: float
    weight: float
    says: str


class EntryView(TypedDict):
    """A version of the config."""

    version: int
    step: int
    values: dict[str, Any]
    before: dict[str, Any]
    by: str
    why: str
    at_ns: int
    in_force: bool
    superseded_by: int | None


class EventView(TypedDict):
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


class FactView(TypedDict):
    """One fact about one rank that the conclusion rests on."""

    rank: int
    says: str


class FaultAccepted(TypedDict):
    job: str
    name: str
    kind: str
    ranks: list[int]


class FaultRequest(TypedDict):
    kind: Literal[
        "kill",
        "stop",
        "contention",
        "cpu-quota",
        "exit",
        "hang",
        "gil-hold",
        "slow",
        "data-slow",
        "nan",
        "gradient",
        "bit-flip",
        "mismatch",
        "skip",
        "deadlock",
        "memory",
        "disk-full",
        "device-error",
        "checkpoint-damage",
        "slow-link",
        "slow-sender",
        "slow-receiver",
        "partition",
        "agent-kill",
        "weaver-kill",
        "nats-kill",
    ]
    ranks: NotRequired[list[int]]
    amount: NotRequired[float | None]
    duration_s: NotRequired[float]
    at_step: NotRequired[int | None]
    where: NotRequired[Literal["step", "data", "backward"]]
    seed: NotRequired[int]
    peer: NotRequired[int | None]


class FindingView(TypedDict):
    ranks: list[int]
    node: str
    confidence: float
    certain: bool
    certainty: str
    lasting_s: float
    waiting: list[int]
    facts: list[FactView]
    inputs: dict[str, float | str | None]


class Health(TypedDict):
    status: Literal["ok", "trouble"]
    version: str
    ready: bool
    active: bool
    troubles: list[str]
    stuck_s: float


class HealthAccepted(TypedDict):
    device: str
    recorded: bool


class HealthRequest(TypedDict):
    """What an external monitor says of a device."""

    level: Literal["ok", "degraded", "failing", "failed"]
    source: str
    why: NotRequired[str]
    values: NotRequired[dict[str, float]]


class HealthView(TypedDict):
    source: str
    level: Literal["ok", "degraded", "failing", "failed"]
    why: str
    at_ns: int


class HistoryView(TypedDict):
    """A requested change of the config: who, when, why, and its outcome."""

    version: int
    operation: str
    state: Literal["waiting", "preparing", "arming", "confirmed", "applied", "not applied", "diverged"]
    reason: str
    step: int | None
    values: dict[str, Any]
    changed: list[DifferenceView]
    by: str
    why: str
    at_ns: int
    reverts: int | None
    in_force: bool
    superseded_by: int | None


class Identity(TypedDict):
    name: str
    role: Literal["admin", "operator", "read"]


class ImportedMetric(TypedDict):
    name: str
    value: float
    median: NotRequired[float | None]
    worse: NotRequired[float | None]
    shortfall: NotRequired[float]


class ImportedTest(TypedDict):
    """The result of a test that ran elsewhere."""

    node: str
    gpu: NotRequired[int | None]
    passed: bool
    why: NotRequired[str]
    measured: NotRequired[int]
    metrics: NotRequired[list[ImportedMetric]]


class IncidentChangeView(TypedDict):
    id: str
    job: str
    kind: str
    verdict: str
    decision: str
    open: bool
    resolution: str
    action: str
    outcome: str


class IncidentDetail(TypedDict):
    id: str
    job: str
    generation: int
    kind: str
    verdict: str
    fault: DeviceFaultView | None
    decision: str
    action: str
    outcome: str
    reason: str
    culprit: int | None
    culprits: list[int]
    open: bool
    lost_steps: int | None
    recovery_s: float | None
    resolution: str
    ended_by: str
    confidence: float | None
    timeline: TimelineView
    exits: list[ExitView]
    finding: FindingView | None
    witness: WitnessView | None
    evidence: list[RankEvidenceView]
    links: LinkMatrixView | None
    goodput_before: float | None
    goodput_after: float | None


class IncidentView(TypedDict):
    id: str
    job: str
    generation: int
    kind: str
    verdict: str
    fault: DeviceFaultView | None
    decision: str
    action: str
    outcome: str
    reason: str
    culprit: int | None
    culprits: list[int]
    open: bool
    lost_steps: int | None
    recovery_s: float | None
    resolution: str
    ended_by: str
    confidence: float | None
    timeline: TimelineView


class JobChangeView(TypedDict):
    id: str
    state: str
    reason: str
    generation: int


class JobCreated(TypedDict):
    job: str
    created: bool


class JobDetail(TypedDict):
    id: str
    state: str
    reason: str
    ended: bool
    generation: int
    restarts: int
    max_restarts: int
    fruitless: int
    max_fruitless: int
    world_size: int
    wanted_workers: int
    standby: int
    spares: list[str]
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
    open_incidents: list[str]
    labels: dict[str, str]
    max_steps: int | None
    progress: float | None
    samples_per_s: float | None
    last_loss: float | Literal["nan", "inf", "-inf"] | None
    replicas: list[ReplicaView]
    checkpoint_step: int | None
    checkpoint_interval: int | None
    restoring: int | None
    paused: bool
    config_version: int
    operation: str
    seq: int
    spawn: str
    interpreter: str
    cwd: str
    args: list[str]
    env_names: list[str]
    workers: list[WorkerView]
    incident_list: list[IncidentView]


class JobLogs(TypedDict):
    job: str
    logs: list[LogView]
    lines: list[LogLine]


class JobRequest(TypedDict):
    """A job. Everything has a default: `{"world_size": 4}` runs the example that comes with torchloom.

    What runs is one of `script`, `module`, `command` or `program`; how many workers is one of
    `world_size`,
    `replicas` × `workers`, or `nodes` × `workers_per_node`.
    """

    name: NotRequired[str | None]
    program: NotRequired[ProgramBody | None]
    script: NotRequired[str | None]
    module: NotRequired[str | None]
    command: NotRequired[list[str] | None]
    args: NotRequired[list[str]]
    cwd: NotRequired[str | None]
    world_size: NotRequired[int | None]
    replicas: NotRequired[int | None]
    workers: NotRequired[int | None]
    workers_per_node: NotRequired[int | None]
    nodes: NotRequired[int | None]
    min_workers: NotRequired[int | None]
    max_workers: NotRequired[int | None]
    standby: NotRequired[int]
    interpreter: NotRequired[str]
    replica: NotRequired[ReplicaBody | None]
    spawn: NotRequired[Literal["warm", "cold"]]
    preload: NotRequired[list[str]]
    max_restarts: NotRequired[int | None]
    max_fruitless: NotRequired[int | None]
    stop_grace_s: NotRequired[float | None]
    pin_cores: NotRequired[bool]
    log_dir: NotRequired[str | None]
    max_steps: NotRequired[int | None]
    expected_steps: NotRequired[int | None]
    limits: NotRequired[LimitsBody]
    policy: NotRequired[PolicyBody | None]
    checkpoint: NotRequired[CheckpointBody]
    env: NotRequired[dict[str, str]]
    env_withheld: NotRequired[list[str]]
    labels: NotRequired[dict[str, Any]]
    queue: NotRequired[bool | None]


class JobSeries(TypedDict):
    job: str
    as_of_ns: int
    names: list[str]
    series: list[SeriesView]


class JobSummary(TypedDict):
    id: str
    state: str
    reason: str
    ended: bool
    generation: int
    restarts: int
    max_restarts: int
    fruitless: int
    max_fruitless: int
    world_size: int
    wanted_workers: int
    standby: int
    spares: list[str]
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
    open_incidents: list[str]
    labels: dict[str, str]
    max_steps: int | None
    progress: float | None
    samples_per_s: float | None
    last_loss: float | Literal["nan", "inf", "-inf"] | None
    replicas: list[ReplicaView]
    checkpoint_step: int | None
    checkpoint_interval: int | None
    restoring: int | None
    paused: bool
    config_version: int
    operation: str


class JobTelemetry(TypedDict):
    job: str
    generation: int
    workers: list[BoxView]


class JobVersions(TypedDict):
    job: str
    workers: dict[str, int]


class JoinRequest(TypedDict):
    token: str
    node: str
    key: str
    """Public half of the key that the host made."""


class JoinTokenRequest(TypedDict):
    valid_s: NotRequired[float]
    """How long it admits hosts."""
    hosts: NotRequired[int]
    """How many hosts it admits."""
    node: NotRequired[str]
    """The only name it admits; empty: any."""


class JoinTokenText(TypedDict):
    token: str
    addresses: list[str]


class JoinView(TypedDict):
    """What the host needs to be a node."""

    claims: str
    servers: list[str]
    addresses: list[str]
    ca: str
    node: str
    api_token: str


class LeavingView(TypedDict):
    """A job that is to leave a drained node or device."""

    job: str
    note: str
    stays: bool


class LimitsBody(TypedDict):
    heartbeat_timeout_s: NotRequired[float | None]
    hang_report_s: NotRequired[float | None]
    hang_act_s: NotRequired[float | None]


class LinkDelayView(TypedDict):
    sender: int
    receiver: int
    delay_s: float
    transfer_s: float


class LinkMatrixView(TypedDict):
    source: Literal["probe", "training"]
    operation: str
    generation: int
    at_ns: int
    at_step: int | None
    verdict: str
    delays: list[LinkDelayView]
    silent: dict[str, str]


class LinksView(TypedDict):
    job: str
    links: LinkMatrixView


class LogEnd(TypedDict):
    """The data of the `end` event, the last one of a log stream."""

    state: str
    unread_ranks: list[int]


class LogLine(TypedDict):
    rank: int
    at_ns: int
    text: str


class LogLines(TypedDict):
    """The data of a `log` event of the log stream."""

    rank: int
    text: str
    lost_bytes: int
    at_ns: int


class LogView(TypedDict):
    rank: int
    text: str
    offset: int
    next_offset: int
    lost_bytes: int
    error: str


class LoginLink(TypedDict):
    code: str
    valid_s: float
    page: bool


class LoginRequest(TypedDict):
    """Either of the two."""

    token: NotRequired[str | None]
    code: NotRequired[str | None]


class NodeVersion(TypedDict):
    node: str
    state: str
    version: str
    refused: str


class NodeView(TypedDict):
    id: str
    state: str
    reason: str
    hostname: str
    address: str
    max_workers: int
    workers: int
    drained: str
    leaving: list[LeavingView]
    spare: dict[str, int]
    devices: list[DeviceView]
    seen_s: float | None
    dropped_messages: int
    pod: str


class OperationAccepted(TypedDict):
    job: str
    operation: str


class OperationView(TypedDict):
    """One requested change and its outcome. Every operation ends with a recorded outcome."""

    id: str
    job: str
    number: int
    version: int
    kind: Literal["set", "pause", "resume", "stop", "checkpoint", "restore", "probe"]
    state: Literal["waiting", "preparing", "arming", "confirmed", "applied", "not applied", "diverged"]
    ended: bool
    reason: str
    values: dict[str, Any]
    by: str
    why: str
    asked_at_ns: int
    ended_at_ns: int
    generation: int
    at_step: int | None
    training_step: int | None
    attempts: int
    changed: list[DifferenceView]
    differing: dict[str, list[DifferenceView]]
    trouble: dict[str, str]
    raised: list[int]
    unheard: list[int]
    reverts: int | None
    saved: str
    unsaved: str


class PlaceView(TypedDict):
    """One place of a setting, such as a param group of an optimizer."""

    address: str
    value: Any
    mode: Literal["hold", "scale"] | None
    own: Any
    version: int | None


class PodJoinRequest(TypedDict):
    token: str
    """Token of the pod's service account, for torchloom."""
    key: str
    """Public half of the key that the pod made."""


class PolicyBody(TypedDict):
    """What to do about findings, by kind and by confidence; the rest follows the defaults."""

    dry_run: NotRequired[bool]
    restarts_per_hour: NotRequired[int]
    rollbacks_per_hour: NotRequired[int]
    pauses_per_hour: NotRequired[int]
    rebalances_per_hour: NotRequired[int]
    leave_outs_per_hour: NotRequired[int]
    take_back_s: NotRequired[float]
    cooldown_s: NotRequired[float]
    skip_batches: NotRequired[int]
    self_fence_s: NotRequired[float | None]
    restart_cost_s: NotRequired[float | None]
    probe_links: NotRequired[bool]
    probe_every_s: NotRequired[float]
    rules: NotRequired[
        dict[
            str,
            dict[
                str,
                Literal[
                    "ignore",
                    "report",
                    "pause",
                    "rebalance",
                    "leave-out",
                    "restart",
                    "restart-replica",
                    "rollback",
                    "evict",
                    "promote",
                    "drain",
                ],
            ],
        ]
    ]


class ProbeRequest(TypedDict):
    why: NotRequired[str]
    within_s: NotRequired[float]


class Problem(TypedDict):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None
    fault: str | None


class ProgramBody(TypedDict):
    kind: NotRequired[Literal["script", "module", "command"]]
    target: str
    args: NotRequired[list[str]]


class PurgeRequest(TypedDict):
    """Which ended jobs to delete: those that match every given condition."""

    states: NotRequired[list[Literal["completed", "failed", "stopped"]]]
    older_than_s: NotRequired[float]
    labels: NotRequired[dict[str, Any]]
    keep_logs: NotRequired[bool]
    keep_checkpoints: NotRequired[bool]
    dry_run: NotRequired[bool]


class PurgeResult(TypedDict):
    jobs: list[str]
    kept: dict[str, str]
    dry_run: bool


class RankCostView(TypedDict):
    rank: int
    node: str
    role: str
    steps: int
    own_s: float
    peers_s: float | None
    slowest_s: float | None
    data_s: float
    waits_s: float
    lost_steps_per_s: float
    steps_per_s: float
    without_steps_per_s: float
    lost_share: float


class RankEvidenceView(TypedDict):
    """One rank as its agent saw it when something was suspected."""

    rank: int
    node: str
    state: str
    phase: str
    steps: int
    doing: str
    location: str
    stack: list[str]
    gil: str
    collectives: list[str]
    log_tail: list[str]


class RankSeries(TypedDict):
    """A value of all ranks over time, the highest of each cell."""

    job: str
    what: Literal["own", "wait", "data", "phase"]
    as_of_ns: int
    ranks: int
    ranks_per_row: int
    width_s: float
    at_s: list[float]
    rows: list[list[float | None]]
    phases: list[str]


class RanksNow(TypedDict):
    """All ranks at this moment: every list has one entry for each of `rank`."""

    job: str
    generation: int
    as_of_ns: int
    nodes: list[str]
    phases: list[str]
    rank: list[int]
    node: list[int]
    replica: list[int]
    alive: list[bool]
    step: list[int]
    phase: list[int]
    idle_s: list[float]
    own_s: list[float | None]
    wait_s: list[float | None]
    data_s: list[float | None]
    lost_share: list[float | None]


class ReadingView(TypedDict):
    """The newest measurements of one source. Not recorded."""

    source: str
    index: int | None
    values: dict[str, float]
    states: list[str]
    processes: list[int]
    error: str


class ReasonRequest(TypedDict):
    why: NotRequired[str]


class ReplayStepView(TypedDict):
    seq: int
    at_ns: int
    kind: str
    text: str
    changes: list[StateChangeView]
    decisions: list[DecisionView]


class ReplayView(TypedDict):
    incident: str
    job: str
    steps: list[ReplayStepView]
    left_out: int
    dropped_before: int
    checked: int
    differing: int
    sentence: str


class ReplicaBody(TypedDict):
    """One replica of a torchft job. Its replicas are submitted one by one, each with its index."""

    set: str
    index: int
    size: int
    min_replicas: NotRequired[int]


class ReplicaView(TypedDict):
    id: str
    index: int
    state: Literal["running", "starting", "stopping", "exited"]
    workers: int
    running_workers: int
    step: int
    phase: str
    last_loss: float | Literal["nan", "inf", "-inf"] | None


class ResetView(TypedDict):
    """The data of a `reset` event: earlier events are no longer kept, so read everything again."""

    seq: int
    reason: str


class RestartAccepted(TypedDict):
    job: str
    generation: int


class RestartRequest(TypedDict):
    max_steps: NotRequired[int | None]


class RestoreAccepted(TypedDict):
    job: str
    step: int
    checkpoint: str
    operation: str


class RestoreRequest(TypedDict):
    step: int
    config: NotRequired[Literal["keep", "revert"] | None]


class RevertRequest(TypedDict):
    version: NotRequired[int | None]
    why: NotRequired[str]
    dry_run: NotRequired[bool]


class ScaleAccepted(TypedDict):
    job: str
    workers: int
    generation: int


class ScaleRequest(TypedDict):
    workers: int
    dry_run: NotRequired[bool]


class SeriesView(TypedDict):
    """One series; null where nothing was recorded."""

    name: str
    width_s: float
    at_s: list[float]
    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]


class ServiceVersion(TypedDict):
    name: str
    version: str
    leads: bool
    blocked: str


class SettingView(TypedDict):
    """A setting as it is declared, and its value in every place it has."""

    name: str
    type: str
    allowed: str
    optional: bool
    minimum: float | None
    maximum: float | None
    below: float | None
    choices: list[str]
    count: int
    description: str
    places: list[PlaceView]


class StateChangeView(TypedDict):
    """One thing that an event changed in the core's state. An empty text: it was not there."""

    what: str
    before: str
    after: str


class StopRequest(TypedDict):
    kill: NotRequired[bool]
    grace_s: NotRequired[float | None]
    signal: NotRequired[Literal["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"] | None]


class Stragglers(TypedDict):
    job: str
    generation: int
    steps_per_s: float | None
    stands: str
    missing: list[int]
    ranks: list[RankCostView]


class TestImport(TypedDict):
    source: str
    results: list[ImportedTest]


class TestImported(TypedDict):
    devices: list[str]
    unknown: list[str]


class TestMetricView(TypedDict):
    name: str
    value: float
    median: float | None
    worse: float | None
    shortfall: float


class TestView(TypedDict):
    """A test of a device."""

    source: str
    passed: bool
    why: str
    at_ns: int
    measured: int
    metrics: list[TestMetricView]


class TimelineView(TypedDict):
    """Wall-clock nanoseconds; 0 means not (yet)."""

    fault_ns: int
    first_sign_ns: int
    detected_ns: int
    decided_ns: int
    stopped_ns: int
    spawned_ns: int
    restored_ns: int
    first_step_ns: int


class TokenMade(TypedDict):
    name: str
    role: Literal["admin", "operator", "read"]
    created_at_ns: int
    token: str


class TokenRequest(TypedDict):
    name: str
    role: NotRequired[Literal["admin", "operator", "read"]]


class TokenView(TypedDict):
    name: str
    role: Literal["admin", "operator", "read"]
    created_at_ns: int


class UnfinishedLine(TypedDict):
    """The data of an `unfinished` event: a line without an end, for instance a progress bar as it is
    now.
    """

    rank: int
    text: str


class Versions(TypedDict):
    services: list[ServiceVersion]
    nodes: list[NodeVersion]
    jobs: list[JobVersions]
    schemas: dict[str, int]


class WitnessView(TypedDict):
    """What torch's Flight Recorder said about a hang, beside the detector."""

    agrees: bool
    sentence: str
    lines: list[str]


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
    metrics: dict[str, float | Literal["nan", "inf", "-inf"]]
    exit: str
    blind: str
    log_lost_lines: int
    log_lost_bytes: int
    copy_trouble: str
