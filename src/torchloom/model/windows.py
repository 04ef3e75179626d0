"""Windows: what detectors look at. One record per rank, taken by its agent from black box and process.

Every time in a window is on the clock of the rank's own host, and detectors only ever subtract times of the
same window; so clocks of different hosts need not agree, and no detector can come to depend on it. A window
holds summaries and the collectives in progress; facts from samples of the process are in it only where a
detector asked (`Finding.ask`). What follows from a window is judged in core/detect.

No record here can be part of a reference cycle, so the garbage collector does not follow them (`gc=False`): a
weaver holds half a million steps of a large job, and walking over them took longer than judging them.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from torchloom.model.worker import WorkerRef

Completion = Literal["callback", "host-wait", "device-event", "none"]
WaitsOn = Literal["unknown", "lock", "outside", "timer"]
LOOKS_FOR_STOPS = 20


class Collective(Struct, frozen=True, array_like=True, gc=False):
    """One record of the collectives ring."""

    op: str
    """torch.distributed's name, for example `all_reduce`."""
    group: str
    group_seq: int
    """0 when unknown."""
    bytes: int
    dtype: str
    entered_ns: int
    finished_ns: int = 0
    """0 while it is in progress."""
    completion: Completion = "callback"
    """How the end is (or will be) learned; with `none` nothing can be said about it."""
    waited: bool = True
    """The caller waits for it at once. An asynchronous one may be in progress while its rank computes."""
    peer: int | None = None
    """Rank within the group: the other side of a send or recv, the root of a rooted operation."""
    exact: bool = True
    """The number is counted by the recorder. A backend's own count has sends and recvs in it."""
    failed: bool = False
    reduction: str = ""
    """`SUM`, `MAX`, …; empty when nothing is reduced or nobody knows."""
    arrived_ns: int = 0
    """When the rank's device came to it; 0 on the host, when it has not come, or when nobody watched."""
    approaching: bool = False
    """The device is known not to have come to it: the call returned, but earlier launches still run."""
    head_ns: int = 0
    """When it became the oldest of its group that the device has not finished."""

    @property
    def under_way(self) -> bool:
        return self.finished_ns == 0 and self.completion != "none" and not self.failed

    @property
    def on_device(self) -> bool:
        return self.completion == "device-event"

    @property
    def began_ns(self) -> int:
        """When the rank, or its device, was there and began to wait for the others; 0 when nobody knows."""
        return self.arrived_ns if self.on_device else self.entered_ns


class GroupPosition(Struct, frozen=True, array_like=True, gc=False):
    """A rank's progress in one group, from the group table."""

    name: str
    size: int
    rank: int
    """Of this worker within the group."""
    entered: int
    finished: int
    wait_ns: int = 0
    """Median over the window's steps of `waited_ns` of the group's collectives of a step; sends and recvs are
    not in it, because what a pipeline waits for there is mostly work."""
    timeout_s: float = 0.0
    """After which the group's backend gives up by itself; 0: not known."""


class PairTimes(Struct, frozen=True, array_like=True, gc=False):
    """Sends to and receives from one peer: the shortest of a step, in the median over the newest steps."""

    group: str
    peer: int
    """Rank within the group."""
    send_ns: int = 0
    recv_ns: int = 0
    """0: there was none."""
    count: int = 1
    """Of the more frequent kind, a step."""


class PairCount(Struct, frozen=True, array_like=True, gc=False):
    """The progress of a stalled rank with one peer."""

    group: str
    peer: int
    """Rank within the group."""
    sent: int | None
    received: int | None
    """The newest send to it and recv from it that were entered; None: not known."""
    usual: int | None = None
    """By how much its sends should be ahead of its newest recv, as in the steps before; None: not known."""


class StepTimes(Struct, frozen=True, array_like=True, gc=False):
    """One completed step."""

    step: int
    step_ns: int
    data_wait_ns: int
    wait_ns: int
    """`waited_ns` of all collectives of the step."""
    made: tuple[tuple[int, int], ...] = ()
    """For groups used in the step: their place in `RankWindow.groups`, and how many collectives the rank had
    entered there by the end of the step. Sends and recvs are not counted."""
    marked: tuple[tuple[int, int, str], ...] | None = ()
    """Collectives of those groups that reduce by something else than a sum or have another root than 0: the
    group's place, the number of the operation, and what it was. None: there were too many to say. In a
    group of `sampled` the number is negative: -2 is the second of this step."""
    sampled: tuple[tuple[int, int], ...] = ()
    """For groups whose collectives are not numbered exactly (a recorder that samples): their place, and how
    many the step had."""

    @property
    def own_ns(self) -> int:
        """What the rank took for itself: the step without waiting for others. The late rank has the most."""
        return max(0, self.step_ns - self.wait_ns)


class ProcessFacts(Struct, frozen=True, omit_defaults=True, gc=False):
    """What the kernel and, on suspicion, py-spy say about the process (children included in counters)."""

    state: str = "R"
    """One letter of /proc: R, S, D, T (stopped), t (traced), Z; X when there is no process any more."""
    cpu_ns_per_step: int = 0
    run_delay_ns_per_step: int = 0
    """Time in which it wanted a CPU and had none: run queue (schedstat) and cgroup throttling."""
    throttled_ns_per_step: int = 0
    """The part of it, at least, in which a quota of its cgroup kept it from running."""
    unchanged_ns: int = 0
    """For how long stack, CPU time, I/O and network counters have all stayed the same, children's too."""
    unchanged_samples: int = 0
    """In how many samples; 0 when nobody sampled stacks."""
    waits_on: WaitsOn = "unknown"
    """`lock` only if no thread of it or of its children waits for a file, a socket (c10d's own excepted), a
    timer, or a lock in shared memory: then nothing outside can wake it. `unknown` in case of doubt."""
    waits_for: str = ""
    """What its main thread waits for, as a clause: `it waits for a lock on /data/cache.lock`."""
    life: str = ""
    """The newest sign of life while it was sampled, as a clause: `it uses 98 % of a core`, `it prints`."""
    quiet_ns: int = 0
    """For how long it was sampled without any sign of life."""
    tracer: str = ""
    """Who debugs it: `gdb (pid 4711)`, or `pdb`."""
    location: str = ""
    """`tokenize() at data.py:88`: the innermost frame of the user's own code."""
    children: int = 0
    tree_quiet_ns: int = 0
    """Of a worker that has recorded nothing itself: how many child processes it has, and for how long neither
    it nor any of them has shown a sign of life. Both 0 for all others."""
    stops: int = 0
    """In how many of the newest looks (`LOOKS_FOR_STOPS`) it was found stopped, though it runs in between."""
    became: str = ""
    """The program that its process has become by an exec, after it had recorded something."""
    script_failed: str = ""
    """The error with which its script has ended, though a thread keeps the process alive."""
    connection_lost: bool = False
    """Its end record says that it died of a peer's death."""
    died_ns: int = 0


class DeviceFacts(Struct, frozen=True, array_like=True, gc=False):
    """What the recorder sees of the device that a rank's collectives run on."""

    state: Literal["unknown", "idle", "busy", "failed"]
    """`idle`: everything that was launched has run."""
    quiet_ns: int = 0
    """For how long it has been so without ending or reaching a collective."""
    error: str = ""
    """What it answered, if it failed; else the error of the newest collective that failed on it."""
    lead_ns: int = 0
    """How long before the device came to it a step's last collective was enqueued, in the median."""
    idle: float = 0.0
    """Of the looks of the last seconds, the part that found it with nothing to do: it waits for its host."""


class PartHash(Struct, frozen=True, array_like=True, gc=False):
    """A hash of one part of a rank's parameters after a step. Equal parts of equal tables may be compared."""

    step: int
    table: int
    """Names the shapes and types of all parameters of the rank."""
    part: int
    parts: int
    """How many there are."""
    hash: int


class QuorumFacts(Struct, frozen=True, array_like=True, gc=False):
    """What a rank of a torchft replica reports of the quorum that it trains in."""

    number: int
    replicas: int
    steps: int
    """How many it has committed in it, the first left out."""
    wait_s: float
    """How long it waits in a step until a quorum is formed, in the median."""


class Broken(Struct, frozen=True, array_like=True, gc=False):
    """The first value of a run of values that are no finite numbers; it stays until the next run."""

    run: int
    """Counted from 1."""
    step: int
    """Completed steps when it was reported."""
    name: str
    value: str


class FailedCollective(Struct, frozen=True, array_like=True, gc=False):
    """The newest collective of a rank that ended with an error."""

    count: int
    """Failed until then, this one included."""
    what: str
    """`all_reduce #4211 of group dp`."""
    ended_ns: int
    step: int = 0
    """Completed steps when the agent saw it."""


class RankWindow(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One rank as its agent saw it at `taken_ns`."""

    rank: int
    node: str
    device: str = ""
    role: str = ""
    """Ranks of one role do the same work, for example those of one pipeline stage. Empty: not reported."""
    taken_ns: int
    started_ns: int = 0
    last_activity_ns: int = 0
    steps_done: int = 0
    phase: str = "training"
    phase_since_ns: int = 0
    steps: tuple[StepTimes, ...] = ()
    """The newest, oldest first."""
    groups: tuple[GroupPosition, ...] = ()
    pairs: tuple[PairTimes, ...] = ()
    """Whom it sent to and received from lately."""
    counts: tuple[PairCount, ...] = ()
    counts_whole: bool = False
    """Of a rank that has not moved for a while: its progress with each peer, and whether it certainly sent
    nothing to a peer that is not listed."""
    collectives: tuple[Collective, ...] = ()
    """Those in progress, oldest first; of a rank that has waited for a while, the last it has left, too."""
    process: ProcessFacts = ProcessFacts()
    accelerator: DeviceFacts | None = None
    """None as long as no collective was given to a device."""
    work_per_step: float = 0.0
    """Samples or tokens per step as the script reports them; 0 when it does not."""
    values: dict[str, float] = {}
    """Newest metrics, for example loss and grad_norm."""
    values_step: int = 0
    """Completed steps when they were reported; 0: not known."""
    peaks: dict[str, tuple[int, float]] = {}
    """The highest of each within the last second or two, and the completed steps at it: not every value is in
    a window."""
    records: bool = True
    """Whether its collectives are recorded: without that its place among its peers is not known."""
    hashes: tuple[PartHash, ...] = ()
    """The newest, by step."""
    broken: Broken | None = None
    failed: FailedCollective | None = None
    """None as long as no collective has failed."""
    quorum: QuorumFacts | None = None
    """None if it is no rank of a torchft replica, or has committed nothing yet."""
    left: str = ""
    """Its process has ended well while others still run, and how: `exited with code 0 after 41 steps`."""
    offset: int | None = None
    """Training step minus step; None when the script does not report its training step."""

    @property
    def idle_s(self) -> float:
        """Since the last sign of progress of any kind."""
        return max(0, self.taken_ns - (self.last_activity_ns or self.started_ns)) / 1e9

    @property
    def dead(self) -> bool:
        return self.process.state in ("X", "Z")

    def waits(self) -> Collective | None:
        """The oldest collective in progress: nothing the rank entered later can end before it does."""
        return next((c for c in self.collectives if c.under_way), None)

    def age_s(self, collective: Collective) -> float:
        """For how long the rank has waited in it; on a device, since the rank or its device reached it."""
        return age_ns(self.taken_ns, collective) / 1e9


def age_ns(taken_ns: int, collective: Collective) -> int:
    """For how long a rank has been in it; on a device, since the rank or its device reached it."""
    since_ns = collective.entered_ns
    if collective.head_ns or collective.arrived_ns:
        since_ns = max(since_ns, collective.head_ns or since_ns, collective.arrived_ns or since_ns)
    return max(0, taken_ns - since_ns)


class RefWindow(Struct, frozen=True, array_like=True, gc=False):
    """A window and whose it is."""

    ref: WorkerRef
    window: RankWindow


class WindowBlock(Struct, frozen=True, array_like=True, gc=False):
    """Windows of some workers of one job as numbers, one row each: whatever else is in them is in a skeleton
    that was sent before, or is in `sent`. Made and read in core/detect/window_blocks.py."""

    job: str
    generation: int
    ranks: tuple[int, ...]
    incarnations: tuple[int, ...]
    skeletons: tuple[int, ...]
    """The number of the skeleton of each."""
    least: bytes
    """The least number of each column, as words of 8 bytes."""
    narrow: bytes
    narrow_values: bytes
    """Columns that are not the same in all rows (places of 2 bytes), and for each of them, by row, how much
    more than the least number it has (4 bytes) …"""
    wide: bytes
    wide_values: bytes
    """… and where that would be too much for 4 bytes, the numbers themselves (8 bytes)."""
    first_step: int = 0
    steps: int = 0
    """Completed steps that are new: the first, and how many."""
    places: tuple[int, ...] = ()
    """Of the groups whose collectives are counted in them (`StepTimes.made`)."""
    inside: dict[int, tuple[Collective, ...]] = {}
    """By row, collectives in progress that are not those of the skeleton."""
    hashes: dict[int, tuple[PartHash, ...]] = {}
    sent: dict[int, RankWindow] = {}
    """By row, skeletons."""


class WindowBatch(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The windows of one node's workers, or a part of them: lossy, never in the stream."""

    node: str
    session: str
    sent_ns: int = 0
    """When it was sent, by a clock of its host that nobody sets (since boot)."""
    windows: tuple[RefWindow, ...] = ()
    """Those that no block can hold."""
    blocks: tuple[WindowBlock, ...] = ()
