"""Effects: what the core wants done, in the imperative. Every one has an id, a cause and a reason.

An effect is open until an event names its id as done; the weaver resends it until then, and the agent
does it at most once.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from msgspec import Struct

from torchloom.model.faults import Fault
from torchloom.model.job import Program, SpawnMode
from torchloom.model.neighbours import MemoryPlan
from torchloom.model.node import RendezvousAddress, RendezvousRef
from torchloom.model.quorum import LighthouseSite, ReplicaSeat
from torchloom.model.worker import WorkerRef


class EffectBase(Struct, frozen=True, kw_only=True, tag_field="do"):
    since: ClassVar[int] = 1
    """The schema of commands that knows this one, as `EventBase.since` says it of events."""
    id: str
    cause: int
    """Sequence number of the event that led to it."""
    reason: str
    """One sentence a person can read."""
    node: str
    """The node whose agent acts."""


class StartRendezvous(EffectBase, frozen=True, kw_only=True, tag="start-store"):
    """Start a fresh c10d store for a generation and report its address."""

    store: RendezvousRef
    host: str
    interpreter: str
    spawn: SpawnMode
    preload: tuple[str, ...] = ()
    env_of: str = ""
    """Job whose environment decides which spawner serves it."""
    replica: ReplicaSeat | None = None
    """Also open a door at the lighthouse of its torchft job."""
    lighthouse: LighthouseSite | None = None
    """Where that is; None: on this node."""


class StopRendezvous(EffectBase, frozen=True, kw_only=True, tag="stop-store"):
    """End the store of a generation that is over."""

    store: RendezvousRef
    door_of: str = ""
    """Its node is lost: close only its door at the lighthouse of this torchft job."""


class Launch(Struct, frozen=True):
    """One worker to start."""

    ref: WorkerRef
    local_rank: int
    device: str = ""
    """The GPU that was chosen for it; empty where the host has none."""


class StartWorkers(EffectBase, frozen=True, kw_only=True, tag="start-workers"):
    """Start these workers of one generation on one node."""

    job: str
    generation: int
    program: Program
    cwd: str
    interpreter: str
    spawn: SpawnMode
    preload: tuple[str, ...]
    launches: tuple[Launch, ...]
    world_size: int
    local_world_size: int
    group_rank: int
    group_world_size: int
    replicas: int
    restart_count: int
    max_restarts: int
    store: RendezvousAddress
    pin_cores: bool = False
    expected_steps: int | None = None
    restore_step: int | None = None
    """Begin from the state of this step instead of the newest one."""
    paused: bool = False
    """They stay paused before their first step until the job is resumed."""
    fence_s: float | None = None
    """They end when this host has lost the control plane for this long."""
    schedule: str = ""
    """The config's versions by training step (core/config/box_codec.py), for the black box."""
    max_steps: int | None = None
    """The last step, if it was changed since the submission: workers read it as MAX_STEPS."""
    log_dir: str = ""
    """Where the workers' output is kept; empty: in the agent's own directory."""
    barred: tuple[str, ...] = ()
    """Devices of the node that are out of use, also if the job's own environment names them."""
    replica: ReplicaSeat | None = None
    """The workers are one replica of a torchft job."""
    memory: MemoryPlan | None = None
    """Where copies of their states in memory go, and where earlier ones are; None: nowhere."""


class StopWorkers(EffectBase, frozen=True, kw_only=True, tag="stop-workers"):
    """End these workers: by request at a step boundary, then SIGTERM, then SIGKILL.

    For an incarnation the agent does not know it reports WorkerExited with an unknown exit (source
    "inventory", activity "never started") and never starts that incarnation afterwards.
    """

    workers: tuple[WorkerRef, ...]
    at_step: int | None = None
    """Ask for an end at the boundary before this step first, and wait `boundary_wait_s` for it."""
    boundary_wait_s: float = 0.0
    grace_s: float = 0.0
    """Time between SIGTERM and SIGKILL; 0 means SIGKILL at once."""
    signal: str = ""
    """Sent to the workers themselves, not to their process groups, in place of SIGTERM; empty: SIGTERM."""
    kill_in_collective: bool = False
    """SIGKILL at once every worker inside a collective: the group is broken, so it could only wait."""
    let_end: bool = False
    """They are ending by themselves: no SIGTERM, and SIGKILL for what has not ended after `grace_s`."""
    strays: bool = False
    """They already count as dead, or are unknown: no rank of their job starts before this is done."""


class RemoveJobFiles(EffectBase, frozen=True, kw_only=True, tag="remove-job-files"):
    """Remove the logs of a job that was deleted, unless a newer job of its name has begun meanwhile."""

    job: str
    generation: int
    """The last one of the deleted job; a worker of a later one means that the files are another job's."""


class ReleaseMemory(EffectBase, frozen=True, kw_only=True, tag="release-memory"):
    """Free the memory tier of a job: it has ended, and nothing will be restored from it."""

    job: str
    generation: int
    """The last one of the job; a worker of a later one means that the memory is in use again."""


class WarmSpawner(EffectBase, frozen=True, kw_only=True, tag="warm-spawner"):
    """Have a spawner for this job's interpreter and environment ready, so that a start costs a fork only."""

    job: str
    interpreter: str
    preload: tuple[str, ...] = ()


class PostMail(EffectBase, frozen=True, kw_only=True, tag="post-mail"):
    """Merge this mail into the mailboxes of those of these workers that run here.

    The agent does not report that it is done: the ranks' answers show it. The core closes it.
    """

    job: str
    generation: int
    workers: tuple[WorkerRef, ...]
    mail: str
    """As core/transaction/packing.py packs it."""


class TestDevice(EffectBase, frozen=True, kw_only=True, tag="test-device"):
    """Test a device that no worker uses, in a process of its own, and report the result."""

    __test__ = False

    device: str
    kind: Literal["gpu", "cpu"]


class ShareChange(EffectBase, frozen=True, kw_only=True, tag="share-change"):
    """Propose to all replicas of a torchft job, at its lighthouse on this node, to do this at one commit."""

    job: str
    """The replica that was named in the request."""
    set: str
    version: int
    values: dict[str, Any]
    at_step: int = 0
    """The first step that may use it; 0: the next that all replicas can."""
    withdrawn: str = ""
    """Why it is not wanted any more, if so."""
    kind: str = "set"
    """`set`, `checkpoint` or `pause`."""


class MoveLighthouse(EffectBase, frozen=True, kw_only=True, tag="move-lighthouse"):
    """The lighthouse of this torchft job is at another place from now on: on this node, or on another one to
    which this node relays. Done when the lighthouse has all records that it waits for."""

    job: str
    """A replica that runs."""
    set: str
    lighthouse: LighthouseSite


class SeatReplica(EffectBase, frozen=True, kw_only=True, tag="seat-replica"):
    """Leave this replica out of the quorums of its torchft job, or take it back, at its lighthouse."""

    job: str
    set: str
    generation: int
    out: bool


class InjectFault(EffectBase, frozen=True, kw_only=True, tag="inject-fault"):
    """Inject this fault into these workers."""

    fault: Fault
    name: str
    workers: tuple[WorkerRef, ...]
    peers: tuple[int, ...] = ()
    """Of a slow network: the ranks that are sent to slowly; empty: all of them. Those among the workers only
    say which connections are theirs."""


Effect = (
    StartRendezvous
    | StopRendezvous
    | StartWorkers
    | StopWorkers
    | RemoveJobFiles
    | ReleaseMemory
    | WarmSpawner
    | InjectFault
    | PostMail
    | TestDevice
    | ShareChange
    | MoveLighthouse
    | SeatReplica
)
