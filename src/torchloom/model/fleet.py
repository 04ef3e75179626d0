"""The state of everything, as the core keeps it. Changed only by core.apply; rebuilt by replay.

It has more than 400 lines because a snapshot is one definition: all of this.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field

from torchloom.model.admission import Admissions
from torchloom.model.checkpoints import CheckpointPlace, SavedCheckpoint
from torchloom.model.devices import Device, DeviceAct, DevicePolicy
from torchloom.model.effects import Effect
from torchloom.model.incidents import Incident
from torchloom.model.job import JobSpec
from torchloom.model.links import LinkMatrix
from torchloom.model.node import Inventory, NodeClock, RendezvousAddress, RendezvousRef
from torchloom.model.policy import Acting, Balance, LeftOutReplica
from torchloom.model.quorum import CutOffReplica, LighthousePlace
from torchloom.model.steering import OperationRecord
from torchloom.model.timers import Timer
from torchloom.model.transaction.config import Schedule
from torchloom.model.transaction.state import Proposer, ProposerLimits
from torchloom.model.worker import DeviceUse, Exit, LogLoss, WorkerRef


class JobState(StrEnum):
    WAITING = "waiting"
    """Cannot be placed now; the reason says why. Starts by itself once it can."""
    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    """A worker failed; the rest of its generation is being ended."""
    BACKOFF = "backoff"
    """Waits before the next restart, because the restarts before made no progress."""
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"


ENDED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.STOPPED})


class WorkerState(StrEnum):
    ASSIGNED = "assigned"
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"


class NodeState(StrEnum):
    READY = "ready"
    UNREACHABLE = "unreachable"
    LEFT = "left"
    GONE = "gone"
    """A person confirmed that its host is gone. If it comes back, its old workers are killed."""


class Worker(Struct, kw_only=True):
    """One rank of the job's current generation."""

    ref: WorkerRef
    node: str
    local_rank: int
    replica: int
    state: WorkerState = WorkerState.ASSIGNED
    pid: int = 0
    devices: tuple[DeviceUse, ...] = ()
    blind: str = ""
    version: str = ""
    started_at_ns: int = 0
    first_step_at_ns: int = 0
    exit: Exit | None = None
    exited_at_ns: int = 0
    steps: int = 0
    training_step: int | None = None
    """As its exit reported it, like `steps`."""
    script_failed: bool = False
    """Its script has failed, and its process is still ending."""

    @property
    def alive(self) -> bool:
        """Whether a process of this incarnation may exist."""
        return self.state is not WorkerState.EXITED


class RestartPlan(Struct, frozen=True):
    """What follows once the failed generation is gone."""

    restart: bool
    delay_s: float
    reason: str
    progress: bool = False
    """Whether the failed generation had made real progress."""
    waits: bool = False
    """The cause is outside the job: the next generation does not count as a restart."""
    free: bool = False
    """The same, and nothing has to be waited for."""


class Act(Struct, frozen=True, array_like=True):
    """Something that was done because of a finding."""

    action: str
    at_ns: int


class JobCheckpoints(Struct, kw_only=True):
    """What is known of a job's checkpoints without reading their store."""

    place: CheckpointPlace
    node: str
    """The node that reported it; a directory is on that node."""
    restored: str = ""
    """What the newest generation resumed from; empty: it started from scratch."""
    restored_from: str = ""
    restored_generation: int = 0
    saved: SavedCheckpoint | None = None
    saved_generation: int = 0
    failing: str = ""
    """The incident about saving, while saves fail."""
    failed_at: tuple[int, int] = (0, 0)
    """Generation and step of the failure."""
    failed_ns: int = 0
    failed_why: str = ""
    """When a failed save was last reported, and why it failed."""
    last_failing: str = ""
    healed_ns: int = 0
    """The previous incident, and when a save succeeded again."""
    rejected: dict[str, None] = field(default_factory=dict)
    """Damaged states that an incident has already reported."""


class Differing(Struct, kw_only=True):
    """Objects of the script that did not hold what was saved after a restore."""

    incident: str
    places: tuple[str, ...]
    reports: int = 1


class Restore(Struct, frozen=True, kw_only=True):
    """An earlier state that a person wants the next generation to begin from."""

    step: int
    by: str
    after: int
    """Generation at the time of the request: a later one carries it out."""


class Leaving(Struct, kw_only=True):
    """A job that has to leave a drained node, and its progress; kept by core.placement.drain."""

    node: str
    by: str
    why: str
    device: str = ""
    """The drained device, if only that is to be left."""
    force: bool = False
    host_ends: bool = False
    """The host is being taken away: the job leaves it even if it has to wait for room then."""
    step_s: float = 0.0
    operation: str = ""
    """The checkpoint that was asked for."""
    saved: str = ""
    """The checkpoint, once it is committed."""
    unsaved: str = ""
    """Why there is none and none is being written."""
    tries: int = 0
    """Saves that were asked for and failed."""
    note: str = ""
    """Its progress, in words."""
    stays: bool = False
    """The job cannot leave at present."""


STEERING = ProposerLimits(resend_s=0.0, await_first_step=True)
"""The outbox repeats what is open, and before the first step nobody could answer."""


class Job(Struct, kw_only=True):
    id: str
    spec: JobSpec
    by: str
    state: JobState
    reason: str
    submitted_at_ns: int
    env_id: str = ""
    """Of its submission; under it the values of its environment are kept."""
    started_at_ns: int = 0
    ended_at_ns: int = 0
    generation: int = 0
    generation_at_ns: int = 0
    next_incarnation: int = 1
    workers: list[Worker] = field(default_factory=list)
    """By rank, of the current generation only."""
    living: int = 0
    """How many of them may have a process; kept by core.lifecycle."""
    log_lost: dict[int, LogLoss] = field(default_factory=dict)
    """By rank: output of its ended workers that is not in the log."""
    places: dict[str, None] = field(default_factory=dict)
    """Every node that ever held a worker of it, so that its files are found; kept by core.lifecycle."""
    rendezvous: RendezvousAddress | None = None
    rendezvous_generation: int = 0
    """Generation for which a store was asked for last; it runs ahead of `generation` during a recovery."""
    rendezvous_node: str = ""
    restarts: int = 0
    store_waits: int = 0
    """Tries in a row in which its checkpoint store did not answer."""
    fruitless: int = 0
    restarts_by_rank: dict[int, int] = field(default_factory=dict)
    plan: RestartPlan | None = None
    incident: str = ""
    """The open incident, if any."""
    incidents: list[str] = field(default_factory=list)
    checkpoints: JobCheckpoints | None = None
    differing: Differing | None = None
    foreign_values: int = 0
    """The last generation with an incident about foreign values in its store."""
    restore: Restore | None = None
    """Requested and not yet carried out."""
    control: Proposer = field(default_factory=lambda: Proposer(limits=STEERING))
    """The operation in progress and those that wait; changed only by core.transaction.proposer."""
    operations: dict[str, OperationRecord] = field(default_factory=dict)
    """The newest, by id, oldest first."""
    schedule: Schedule = ()
    """The changes of its settings by training step; their numbers are those of operations."""
    changes: list[int] = field(default_factory=list)
    """Operations that changed settings, in the order in which they took effect; see steering.versions."""
    paused: bool = False
    stop_grace_s: float = 0.0
    """While its ranks agree on the boundary at which they stop: their grace if they cannot agree."""
    stop_signal: str = ""
    """The signal by which somebody wants it to stop; empty: SIGTERM."""
    lost_ns: int = 0
    """Training time whose steps were lost with their generation."""
    down_ns: int = 0
    """Time without training between a fault and the first step after it, over closed incidents."""
    findings: dict[str, str] = field(default_factory=dict)
    """Open incidents by detectors in this generation, by policy.reporting.key; kept by policy/findings."""
    acts: list[Act] = field(default_factory=list)
    """What findings led to, the newest ones."""
    avoid: dict[str, str] = field(default_factory=dict)
    """Nodes that it left because of a finding, and why; used again only if there is no other place."""
    leaving: Leaving | None = None
    acting: Acting | None = None
    balance: Balance | None = None
    left_out: LeftOutReplica | None = None
    cut_off: CutOffReplica | None = None
    neighbours: dict[str, str] = field(default_factory=dict)
    """Which node keeps copies of each node's states in memory; kept by core.placement.neighbours."""
    memory_at: dict[int, list[str]] = field(default_factory=dict)
    """By rank: the nodes that may hold its state of the generation before, the rank's own node first."""
    spares: list[str] = field(default_factory=list)
    """Nodes that keep a spare place for it; kept by core.placement.standby."""
    target: int = 0
    """Workers that a person wants it to have; 0: as many as it was submitted with."""
    resizing: int = 0
    """The generation that is being ended so that the next one has another size."""
    short_since_ns: int = 0
    """Since when there has been room only for fewer workers than wanted; kept by core.placement.sizing."""
    silent: dict[str, str] = field(default_factory=dict)
    """Incidents about unreachable nodes of this generation, by node; kept by nodes.lost_nodes."""
    links: LinkMatrix | None = None
    """The newest measurement of its links; kept by core.policy.link_findings."""
    probed_ns: int = 0
    """When a suspicion last led to a measurement."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED


class Drain(Struct, frozen=True, kw_only=True):
    """Why a node takes no new worker."""

    by: str = ""
    """The person; empty if a job's policy did it."""
    policy_of: str = ""
    why: str = ""
    until_join: bool = False
    """Its host is being taken away: the next agent under this name is another one, and takes workers."""

    def describe(self) -> str:
        who = f"the policy of {self.policy_of}" if self.policy_of else self.by
        return f"{who}: {self.why}" if self.why else who


class Node(Struct, kw_only=True):
    id: str
    session: str
    state: NodeState
    inventory: Inventory
    joined_at_ns: int
    reason: str = ""
    jobs: dict[str, int] = field(default_factory=dict)
    """Workers here that may have a process, counted by job; kept by core.lifecycle."""
    taken: int = 0
    """All of them together."""
    stores: dict[str, None] = field(default_factory=dict)
    """Jobs whose store is here and up; kept by core.recovery.generation_start."""
    drained: Drain | None = None
    """Who drained the node until a person opens it again; None: workers may be placed."""
    barred: dict[str, None] = field(default_factory=dict)
    """Its devices that are out of use, or tested now; kept by core.devices."""
    devices: dict[str, None] = field(default_factory=dict)
    """All its devices that the fleet knows, also those its agent no longer lists; kept by core.devices."""
    spare: dict[str, int] = field(default_factory=dict)
    """Slots that are kept free here, by the job they are kept for; kept by core.placement.standby."""
    lost: list[WorkerRef] = field(default_factory=list)
    lost_stores: list[RendezvousRef] = field(default_factory=list)
    """Workers that count as dead because a person said that the host is gone; killed if it returns."""
    heard_ns: int = 0
    """When it was certainly last reachable, once it is silent or has left; 0: unknown."""
    claims: dict[str, int] = field(default_factory=dict)
    """Hosts that wanted its name and did not get it, and since when; kept by core.nodes.joining."""

    ends: str = ""
    """Why its host is being taken away: nobody can open it until another agent joins under this name."""

    @property
    def closed(self) -> bool:
        """Whether it takes no new worker, although it may be reachable."""
        return self.drained is not None or bool(self.ends)

    @property
    def usable(self) -> bool:
        """Whether workers may be placed here."""
        return self.state is NodeState.READY and not self.closed

    def limit(self, without: str = "") -> int:
        """How many workers its devices in use may hold; `without` is one that shall not count either."""
        devices, most = self.inventory.devices, self.inventory.max_workers
        usable = sum(use.device not in self.barred and use.device != without for use in devices)
        if usable == len(devices):
            return most
        return min(most, usable * -(-most // len(devices)))

    @property
    def room(self) -> int:
        """How many more workers it may hold; negative when its agent has lowered its limit."""
        return self.limit() - self.taken - sum(self.spare.values())

    def room_for(self, job: str) -> int:
        """The same for one job, which may use the slots that are kept for it."""
        return self.room + self.spare.get(job, 0)


class Submission(Struct, frozen=True):
    """The job that an Idempotency-Key made."""

    job: str
    digest: str


class PastLife(Struct, frozen=True):
    """Where the numbers of a deleted job ended, so that a new job of its name cannot be mistaken for it."""

    generation: int
    next_incarnation: int


class Fleet(Struct, kw_only=True):
    """Everything. `seq` is the last event applied, so a snapshot knows where replay continues."""

    seq: int = 0
    now_ns: int = 0
    """Time as the core counts it: that of the stream's stamps, and never back (core/stream_time.py)."""
    stamp_ns: int = 0
    """Of the newest event."""
    epoch: int = 0
    leader: str = ""
    leader_version: str = ""
    trimmed: int = 0
    """Events up to here are needed by nobody, and may be dropped; kept by core.history.trimming."""
    disturbances: int = 0
    """Incidents of the control plane so far; kept by core.disturbance."""
    floods: dict[str, str] = field(default_factory=dict)
    """Node → its open incident, of agents that append too much; kept by core.nodes.floods."""
    flood_counts: dict[str, int] = field(default_factory=dict)
    """Node → how often its events were refused for a while."""
    jobs: dict[str, Job] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    clocks: dict[str, NodeClock] = field(default_factory=dict)
    """By node; kept by core.nodes.clocks."""
    incidents: dict[str, Incident] = field(default_factory=dict)
    outbox: dict[str, Effect] = field(default_factory=dict)
    """Effects that no event has closed yet."""
    open_by_job: dict[str, dict[str, None]] = field(default_factory=dict)
    """Ids of the effects in the outbox, by the jobs they are about; kept by core.turn."""
    standby: dict[str, None] = field(default_factory=dict)
    """Jobs that want spare places; kept by core.jobs."""
    leaving: dict[str, None] = field(default_factory=dict)
    """Jobs that have to leave a drained node; kept by core.placement.drain."""
    acting: dict[str, None] = field(default_factory=dict)
    """Jobs that are saved because a policy wants something done about them; kept by core.policy.actions."""
    admissions: Admissions = field(default_factory=Admissions)
    """Which hosts may join; kept by core.nodes.admission."""
    devices: dict[str, Device] = field(default_factory=dict)
    device_policy: DevicePolicy = DevicePolicy()
    device_acts: list[DeviceAct] = field(default_factory=list)
    """What the policy did to devices, the newest; kept by core.devices."""
    to_test: dict[str, None] = field(default_factory=dict)
    """Devices that are tested as soon as no worker uses them; kept by core.devices."""
    waiting: dict[str, None] = field(default_factory=dict)
    """Jobs that wait for room, longest first; kept by core.lifecycle."""
    lighthouses: dict[str, LighthousePlace] = field(default_factory=dict)
    """By torchft job; kept by core.placement.lighthouses."""
    keys: dict[str, Submission] = field(default_factory=dict)
    """Of the newest submissions that had an Idempotency-Key."""
    past_lives: dict[str, PastLife] = field(default_factory=dict)
    """Of the newest deleted jobs, by name."""
    timers: dict[str, Timer] = field(default_factory=dict)
    seen: dict[str, None] = field(default_factory=dict)
    """Ids of the newest events, so that a doubled one has no effect."""
