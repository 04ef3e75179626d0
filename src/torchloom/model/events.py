"""Events: what happened, in the past tense. The stream of events is the only truth.

`now` is not in here: it is the stream's own stamp of the message, made once by the server. It has more than
400 lines because all events are one definition: the union at its end.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from msgspec import Struct

from torchloom.model.checkpoints import CheckpointPlace, RejectedCheckpoint, SavedCheckpoint
from torchloom.model.device_faults import Xid
from torchloom.model.device_wear import DeviceResult, DeviceWear, TestResult
from torchloom.model.devices import DeviceMark, DevicePolicy, HealthReport
from torchloom.model.effects import Effect
from torchloom.model.faults import Fault
from torchloom.model.findings import Finding, RankEvidence
from torchloom.model.flight import FlightWitness
from torchloom.model.job import JobSpec
from torchloom.model.node import Inventory, RendezvousAddress, RendezvousRef
from torchloom.model.quorum import Link, ReplicaOutcome
from torchloom.model.steering import Origin
from torchloom.model.transaction.messages import Kind
from torchloom.model.windows import Collective
from torchloom.model.worker import DeviceUse, EndRecord, Exit, LogLoss, WorkerRef


class EventBase(Struct, frozen=True, kw_only=True, tag_field="event"):
    """Common root, so that every event is tagged the same way."""

    since: ClassVar[int] = 1
    """The schema of events (wire/schema_versions.py) that knows this one. An event that is added later, or
    that gets a field which must not be ignored, names the next number: whoever reads less does not guess."""


class JobSubmitted(EventBase, frozen=True, kw_only=True, tag="job-submitted"):
    job: str
    spec: JobSpec
    by: str
    key: str = ""
    """The caller's Idempotency-Key: of several submissions with one key only the first makes a job."""
    digest: str = ""
    """Of the request without the values of its environment, to distinguish a retry from a reused key."""
    env_id: str = ""
    """Under which the values of its environment are kept; every submission has its own."""


class WorkerProgress(Struct, frozen=True):
    """A worker's progress, as the weaver's live view knew it: an input to a decision."""

    rank: int
    steps: int
    step_s: float


class StopRequested(EventBase, frozen=True, kw_only=True, tag="stop-requested"):
    job: str
    by: str
    kill: bool = False
    """No boundary and no grace: SIGKILL."""
    grace_s: float | None = None
    signal: str = ""
    """Name of the signal that asks the script to end, such as SIGUSR1; empty: SIGTERM."""
    progress: tuple[WorkerProgress, ...] = ()
    hears: bool = False
    """Every rank takes part in steering, so the ranks can agree on a boundary."""


class RestoreRequested(EventBase, frozen=True, kw_only=True, tag="restore-requested"):
    """A person wants the job to resume from an earlier checkpoint, which was found complete."""

    job: str
    step: int
    by: str
    progress: tuple[WorkerProgress, ...] = ()
    operation: str = ""
    """Id of the operation by which a running job goes back without a restart, if its ranks can; empty: by a
    restart."""
    config: str = ""
    """`keep` or `revert`, for changes of the config after that step; empty: there were none."""
    config_version: int | None = None
    """The newest version of the config that the chosen state was made with."""
    made: int | None = None
    """The last training step made at the time of the request, if the script reports one."""
    checkpoint: str = ""
    step_s: float = 0.0


class ScaleRequested(EventBase, frozen=True, kw_only=True, tag="scale-requested"):
    """A person wants the job to have another number of workers, and there was room for them."""

    job: str
    workers: int
    by: str
    progress: tuple[WorkerProgress, ...] = ()
    hears: bool = False


class RestartRequested(EventBase, frozen=True, kw_only=True, tag="restart-requested"):
    """A person wants the job to begin again from its newest checkpoint, also if it has ended."""

    job: str
    by: str
    max_steps: int | None = None
    """Its new last step; None: as before."""
    progress: tuple[WorkerProgress, ...] = ()
    hears: bool = False


class ChangeRequested(EventBase, frozen=True, kw_only=True, tag="change-requested"):
    """A person wants something done at one step on all ranks. Names and values were checked before."""

    job: str
    operation: str
    """Its id, chosen by the service that took the request."""
    kind: Kind
    values: dict[str, Any] = {}
    two_phase: bool = False
    at_step: int | None = None
    """Counted in `generation`; None: as soon as all ranks can."""
    training_step: int | None = None
    """What the user named."""
    generation: int = 0
    """The one that at_step was counted in."""
    step_s: float = 0.0
    """How long a step took lately, as the live view knew it; 0: unknown."""
    position: float = 0.0
    """Steps that `generation` had made, plus the share of the one in progress; 0: unknown."""
    by: str
    why: str = ""
    reverts: int | None = None
    origin: Origin = Origin.PERSON
    incident: str = ""
    """The incident because of which a policy wants it."""


class ChangeCancelled(EventBase, frozen=True, kw_only=True, tag="change-cancelled"):
    job: str
    operation: str
    by: str


class RanksAnswered(EventBase, frozen=True, kw_only=True, tag="ranks-answered"):
    """Ranks of one node answered proposals: everything new that one look at their black boxes found."""

    node: str
    job: str
    generation: int
    answers: str


class ChangeShared(EventBase, frozen=True, kw_only=True, tag="change-shared"):
    """How a change of all replicas of a torchft job ended."""

    node: str
    effect: str
    set: str
    version: int
    outcome: ReplicaOutcome


class StepReached(EventBase, frozen=True, kw_only=True, tag="step-reached"):
    """A step that an operation waits for is near. Published only while one waits."""

    job: str
    generation: int
    step: int
    """The step that the foremost rank is about to make."""
    step_s: float = 0.0
    offset: int | None = None
    """Training step minus step, if all ranks report the same."""


class JobDeleted(EventBase, frozen=True, kw_only=True, tag="job-deleted"):
    job: str
    by: str
    keep_logs: bool = True
    """Whether its files stay on the nodes. Events from before there was a choice kept them."""
    env_id: str = ""
    """Of the submission that is meant, so that a later one of the same name stays."""


class NodeJoined(EventBase, frozen=True, kw_only=True, tag="node-joined"):
    """An agent started or is connected again; its inventory is the whole truth of its host."""

    node: str
    session: str
    """Changes when the agent's process does."""
    inventory: Inventory


class NodeUnreachable(EventBase, frozen=True, kw_only=True, tag="node-unreachable"):
    """Heartbeats are missing. That is a suspicion about the way to the node, not about its workers."""

    node: str
    silent_s: float
    """For how long it has been silent: since its last heartbeat, or since a weaver began to listen."""
    unheard_s: float | None = None
    """How long ago the reporting weaver itself received a heartbeat; None: never."""


class NodeReachable(EventBase, frozen=True, kw_only=True, tag="node-reachable"):
    """A node that was thought unreachable is reachable again, and its agent never noticed a gap."""

    node: str


class NodeGone(EventBase, frozen=True, kw_only=True, tag="node-gone"):
    """A person confirmed that the host of a silent node is gone: its workers are dead, unobserved."""

    node: str
    by: str
    steps: dict[str, int] = {}
    """Steps that each job had made there, as the live view knew it last."""
    fenced: tuple[str, ...] = ()
    """Not a person's word: these jobs' workers have ended themselves there (self_fence_s), and only they."""


class NodeDrained(EventBase, frozen=True, kw_only=True, tag="node-drained"):
    """A person wants no new workers on a node, or allows them again."""

    node: str
    by: str
    why: str = ""
    move: bool = False
    """Jobs there move elsewhere; otherwise they stay where they are."""
    force: bool = False
    """Also jobs that cannot be saved first."""
    step_s: dict[str, float] = {}
    """How long a step takes, by job with workers there, as far as it is known."""
    open: bool = False
    """Workers may be placed there again."""


class DeviceMarked(EventBase, frozen=True, kw_only=True, tag="device-marked"):
    """A person, or a program on its behalf, takes a device out of use or returns it."""

    device: str
    mark: DeviceMark
    by: str
    why: str = ""
    node: str = ""
    """Where it was at the time of the request."""
    force: bool = False
    """Of a drain: also jobs that cannot be saved first."""
    step_s: dict[str, float] = {}
    """Of a drain: how long a step takes, by job with workers there, as far as it is known."""


class DeviceHealthReported(EventBase, frozen=True, kw_only=True, tag="device-health-reported"):
    """The class of some devices' health changed, by what an agent or an external monitor sees. Measurements
    that do not change a class are telemetry and never come here."""

    node: str
    health: tuple[HealthReport, ...]
    by: str = ""
    """Who sent it, if it was not the node's agent."""


class DevicePolicySet(EventBase, frozen=True, kw_only=True, tag="device-policy-set"):
    """A person set what is to be done about devices' health."""

    policy: DevicePolicy
    by: str


class DeviceWearReported(EventBase, frozen=True, kw_only=True, tag="device-wear-reported"):
    """What was counted on the devices of a node since its last report: once an hour at most."""

    node: str
    wear: tuple[DeviceWear, ...]


class DeviceTestRequested(EventBase, frozen=True, kw_only=True, tag="device-test-requested"):
    """A person wants a device tested."""

    device: str
    by: str
    why: str = ""
    then: Literal["nothing", "return"] = "nothing"
    """`return`: it is returned to use if it passes."""


class DeviceTested(EventBase, frozen=True, kw_only=True, tag="device-tested"):
    """An agent has tested a device."""

    node: str
    effect: str
    device: str
    result: TestResult


class DeviceTestsImported(EventBase, frozen=True, kw_only=True, tag="device-tests-imported"):
    """A person imported results of tests that ran elsewhere."""

    results: tuple[DeviceResult, ...]
    by: str


class JoinTokenMade(EventBase, frozen=True, kw_only=True, tag="join-token-made"):
    """A person allows some hosts to join the cluster."""

    token: str
    digest: str
    """SHA-256 of its secret, which only that person has."""
    by: str
    valid_s: float
    hosts: int
    node: str = ""
    """The only name it admits; empty: any."""


class NodeAdmitted(EventBase, frozen=True, kw_only=True, tag="node-admitted"):
    """A host presented a join token; it is admitted if that is still worth something here in the stream."""

    node: str
    key: str
    token: str
    digest: str


class NodeRevoked(EventBase, frozen=True, kw_only=True, tag="node-revoked"):
    """A person takes a host's credential back."""

    node: str
    by: str


class NodeLeft(EventBase, frozen=True, kw_only=True, tag="node-left"):
    """The agent ended on request. Its workers, if any, keep running."""

    node: str


class NodeLeaving(EventBase, frozen=True, kw_only=True, tag="node-leaving"):
    """The host is about to be taken away (a pod is evicted, an allocation ends). Its agent still runs."""

    node: str
    within_s: float
    """When its workers are ended at the latest."""
    why: str = ""


class RendezvousStarted(EventBase, frozen=True, kw_only=True, tag="store-started"):
    node: str
    effect: str
    store: RendezvousRef
    address: RendezvousAddress


class RendezvousLost(EventBase, frozen=True, kw_only=True, tag="store-lost"):
    """A store ended unexpectedly. Running groups do not need it; new groups would."""

    node: str
    store: RendezvousRef
    exit: Exit


class StartedWorker(Struct, frozen=True):
    ref: WorkerRef
    pid: int
    devices: tuple[DeviceUse, ...] = ()
    blind: str = ""
    """Why this worker has no black box, if it has none."""
    version: str = ""
    """Of the torchloom that runs in it: its spawner's; empty from one that does not report it."""


class WorkersStarted(EventBase, frozen=True, kw_only=True, tag="workers-started"):
    node: str
    effect: str
    workers: tuple[StartedWorker, ...]


class EffectFailed(EventBase, frozen=True, kw_only=True, tag="effect-failed"):
    """An agent could not carry out an effect; nothing of the effect is left behind."""

    node: str
    effect: str
    why: str


class EffectDone(EventBase, frozen=True, kw_only=True, tag="effect-done"):
    """An effect that has no more specific result was carried out."""

    node: str
    effect: str


class WorkerRegistered(EventBase, frozen=True, kw_only=True, tag="worker-registered"):
    """A worker reported which devices it actually uses."""

    node: str
    ref: WorkerRef
    devices: tuple[DeviceUse, ...]


class FirstStep(EventBase, frozen=True, kw_only=True, tag="first-step"):
    """An incarnation completed its first training step, or waits before it because its job is paused."""

    node: str
    ref: WorkerRef
    at_ns: int
    training_step: int | None = None
    paused: bool = False


class WorkerExited(EventBase, frozen=True, kw_only=True, tag="worker-exited"):
    node: str
    ref: WorkerRef
    exit: Exit
    at_ns: int
    """Wall-clock time at which the process was seen to end."""
    steps: int = 0
    training_step: int | None = None
    ran_s: float = 0.0
    end: EndRecord | None = None
    activity: str = ""
    """Its last recorded activity, in words."""
    log_tail: tuple[str, ...] = ()
    answers: str = ""
    """What it had answered to proposals, as its black box holds it (core/transaction/packing.py)."""
    collectives: tuple[Collective, ...] = ()
    """Of a failed worker: its oldest unfinished collectives, and its newest ones."""
    xids: tuple[Xid, ...] = ()
    """Of a failed worker: what the driver reported about its device shortly before."""
    log_lost: LogLoss | None = None
    """Output that found no room on the disk."""


class ScriptFailed(EventBase, frozen=True, kw_only=True, tag="script-failed"):
    """The script ended by an exception or a code other than 0, and its process is certain to end: its exit
    follows once the interpreter is down. Published at the first sign only, never for one that lost a peer."""

    node: str
    ref: WorkerRef
    end: EndRecord
    at_ns: int
    """Wall-clock time at which the agent saw it."""
    steps: int = 0
    training_step: int | None = None
    ran_s: float = 0.0
    collectives: tuple[Collective, ...] = ()


class CheckpointStoreOpened(EventBase, frozen=True, kw_only=True, tag="checkpoint-store-opened"):
    """A generation found its place in the store and what it resumes from."""

    node: str
    ref: WorkerRef
    place: CheckpointPlace
    restored: str = ""
    """Name of the state it resumed from; empty: it started from scratch."""
    restored_from: str = ""
    """In words: memory, or the store."""
    saved_step: int | None = None
    """The step of that state if it lies in the store, where a later restart finds it again."""


class CheckpointSaved(EventBase, frozen=True, kw_only=True, tag="checkpoint-saved"):
    """A state is complete in the store. Published every few seconds at most, so not for every save."""

    node: str
    ref: WorkerRef
    saved: SavedCheckpoint


class CheckpointFailed(EventBase, frozen=True, kw_only=True, tag="checkpoint-failed"):
    """A save failed, for the first time since the last one that succeeded. Training continues."""

    node: str
    ref: WorkerRef
    step: int
    why: str


class CheckpointRejected(EventBase, frozen=True, kw_only=True, tag="checkpoint-rejected"):
    """A restore skipped states because they are damaged."""

    node: str
    ref: WorkerRef
    rejected: tuple[RejectedCheckpoint, ...]
    used: str = ""
    """Name of the state that was used instead; empty: there was none."""


class RestoreDiffered(EventBase, frozen=True, kw_only=True, tag="restore-differed"):
    """After a restore, objects of the script hold something else than was saved. Training continues."""

    node: str
    ref: WorkerRef
    restored: str
    """Name of the state."""
    places: tuple[str, ...]
    """Where, as a script would write it: `ema["shadow"]`."""
    more: int = 0
    """Places that are not listed."""


class StoreValuesIgnored(EventBase, frozen=True, kw_only=True, tag="store-values-ignored"):
    """A rank found values in its job's c10d store that no rank of the job wrote, and ignored them."""

    node: str
    ref: WorkerRef


class FaultInjected(EventBase, frozen=True, kw_only=True, tag="fault-injected"):
    """Somebody injects a fault. Published before it is done."""

    job: str
    generation: int
    ranks: tuple[int, ...]
    fault: Fault
    by: str
    name: str
    """Name of this injection, by which it can be found."""


class FindingMade(EventBase, frozen=True, kw_only=True, tag="finding-made"):
    """A detector concluded something, or more about an earlier finding. It is in the stream before anybody
    acts on it."""

    job: str
    generation: int
    finding: Finding
    evidence: tuple[RankEvidence, ...] = ()
    """Of ranks that were asked; for a rank that is missing here the earlier report holds."""
    steps: int = 0
    """Steps that the generation has completed."""
    step_s: float = 0.0
    """How long one takes; 0: unknown."""
    offset: int | None = None
    """Training step minus step, if the script reports its step."""
    restore_step: int | None = None
    """The newest checkpoint from before the fault, looked up only if the policy would go back to it."""
    restore_name: str = ""
    restore_why: str = ""
    """Why there is none."""
    shares: str | None = None
    """The shares of the ranks in a global batch, if the script's loader can change them; looked up only for
    slowness that fewer samples would make up for."""


class FindingEnded(EventBase, frozen=True, kw_only=True, tag="finding-ended"):
    """What a detector reported is over."""

    job: str
    generation: int
    key: str
    """Which one: core.policy.reporting.key."""
    lasted_s: float


class PaceMeasured(EventBase, frozen=True, kw_only=True, tag="pace-measured"):
    """How long the ranks of a job with uneven shares take for a step of their own, without their waits."""

    job: str
    generation: int
    operation: str
    """The change of the shares that these steps were made with."""
    own_s: dict[int, float]
    """Of the ranks with smaller shares, and …"""
    peers_s: float
    """… the median of the others."""
    step_s: float
    """A step of the job."""


class ReplicasMeasured(EventBase, frozen=True, kw_only=True, tag="replicas-measured"):
    """How the replicas of a torchft job do, of which one is left out or is tried again."""

    job: str
    """The one that is, or was, left out."""
    generation: int
    quorum: int
    own_s: float | None
    """Its own time in a step; None: it is not in this quorum."""
    others_s: float
    """The longest own time of the others …"""
    step_s: float
    """… and a step of theirs, waits included."""


class ReplicaLinksReported(EventBase, frozen=True, kw_only=True, tag="replica-links-reported"):
    """A replica of a torchft job cannot reach all others, or can again. Of the lighthouse's node."""

    node: str
    job: str
    generation: int
    links: tuple[Link, ...] = ()
    """Pairs of nodes without a connection; none: all work."""
    out: bool = False
    """Whether the lighthouse leaves the replica out of the quorum because of it."""
    others: int = 0
    """Replicas that train without it."""
    why: str = ""
    """Why it takes part again."""


class WitnessAnswered(EventBase, frozen=True, kw_only=True, tag="witness-answered"):
    """torch's Flight Recorder was asked about a hang and has answered. Evidence: nothing is decided by it."""

    job: str
    generation: int
    witness: FlightWitness


class TimerFired(EventBase, frozen=True, kw_only=True, tag="timer-fired"):
    timer: str


class LeaseTaken(EventBase, frozen=True, kw_only=True, tag="lease-taken"):
    weaver: str
    epoch: int
    version: str = ""
    """Of the weaver's torchloom."""


class SnapshotVerified(EventBase, frozen=True, kw_only=True, tag="snapshot-verified"):
    """Replaying from the stored snapshot `base` gave the same fleet as the one that the active weaver has at
    `seq`, which is stored as a snapshot too. Whatever is older than `base` is needed by nobody."""

    epoch: int
    base: int
    seq: int
    digest: str
    """SHA-256 of the fleet at `seq`."""


class ControlDisturbed(EventBase, frozen=True, kw_only=True, tag="control-disturbed"):
    """The control plane could not act for a while, and can again."""

    why: str
    lasted_s: float


class AgentFlooded(EventBase, frozen=True, kw_only=True, tag="agent-flooded"):
    """An agent appended more events than its share, so that none of them are taken for a while; or, with
    `over`, it has kept to its share since."""

    node: str
    why: str = ""
    closed_s: float = 0.0
    over: bool = False
    lasted_s: float = 0.0


class Decided(EventBase, frozen=True, kw_only=True, tag="decided"):
    """The active weaver's record of the effects it is about to send; appended before they are sent."""

    epoch: int
    effects: tuple[Effect, ...]


Event = (
    JobSubmitted
    | StopRequested
    | RestoreRequested
    | ScaleRequested
    | RestartRequested
    | ChangeRequested
    | ChangeCancelled
    | RanksAnswered
    | ChangeShared
    | StepReached
    | JobDeleted
    | NodeJoined
    | NodeUnreachable
    | NodeReachable
    | NodeLeft
    | NodeLeaving
    | NodeGone
    | NodeDrained
    | DeviceMarked
    | DeviceHealthReported
    | DevicePolicySet
    | DeviceWearReported
    | DeviceTestRequested
    | DeviceTested
    | DeviceTestsImported
    | JoinTokenMade
    | NodeAdmitted
    | NodeRevoked
    | RendezvousStarted
    | RendezvousLost
    | WorkersStarted
    | EffectFailed
    | EffectDone
    | WorkerRegistered
    | FirstStep
    | WorkerExited
    | ScriptFailed
    | CheckpointStoreOpened
    | CheckpointSaved
    | CheckpointFailed
    | CheckpointRejected
    | RestoreDiffered
    | StoreValuesIgnored
    | FaultInjected
    | FindingMade
    | FindingEnded
    | PaceMeasured
    | ReplicasMeasured
    | ReplicaLinksReported
    | WitnessAnswered
    | TimerFired
    | LeaseTaken
    | SnapshotVerified
    | ControlDisturbed
    | AgentFlooded
    | Decided
)


class Envelope(Struct, frozen=True):
    """An event on its way: who published it, and its id."""

    id: str
    source: str
    body: Event
    sent_ns: int = 0
    """An agent's wall clock as it sent this; 0 from a weaver. Times in its events are by that clock."""
    session: str = ""
    """Of the agent that sent it."""
    schema: int = 1
    """What a reader must know to understand it; set by `codec.encode_envelope`."""
