"""Messages that are not events: commands and queries to an agent, and lossy telemetry from it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from torchloom.model.checkpoints import CheckpointEntry, CheckpointPlace
from torchloom.model.devices import DeviceReading
from torchloom.model.effects import Effect
from torchloom.model.findings import RankEvidence
from torchloom.model.flight import Dump
from torchloom.model.node import HostId
from torchloom.model.worker import LogLoss, WorkerRef

MEMORY_SECRET = "LOOM_MEMORY_SECRET"
"""Where a start command carries the secret of the copies of its job's states in memory."""
LIGHTHOUSE_SECRET = "LOOM_LIGHTHOUSE_SECRET"
"""Where the start of a replica carries the secret that the nodes of its torchft job share."""
STORE_SECRET = "LOOM_STORE_SECRET"
"""Name under which a command's environment carries what proves the values of a generation's ranks in their
store (wire/store_values.py). The agent takes it out: workers find it in their black boxes, not in their
environment."""


class Command(Struct, frozen=True):
    """An effect on its way to the agent that carries it out."""

    epoch: int
    effect: Effect
    env: dict[str, str] = {}
    """The job's environment, attached at sending so that it is in no event."""
    session: str = ""
    """Session of the addressed agent: another agent with the same name does not answer."""
    schema: int = 1
    """What an agent must know to carry it out; set by `codec.encode_command`."""
    nodes: int = 0
    """How many nodes the fleet has: in a very large one agents report less often."""


class Receipt(Struct, frozen=True):
    """The agent's immediate answer: the result follows as an event."""

    accepted: bool
    highest_epoch: int
    why: str = ""
    too_old: bool = False
    """Refused because the command is of a newer schema than this agent reads."""


class AskLease(Struct, frozen=True, kw_only=True):
    """An agent asks the leading weaver whether it is reachable, and whether it owns the node's name."""

    session: str
    what_for: Literal["keep", "start", "name"]
    """To keep workers that fence themselves, to start such workers, or to confirm the name."""
    host: HostId | None = None
    """Who asks for the name."""


class Standing(Struct, frozen=True):
    """The answer to an agent that asks for its node's name."""

    name: Literal["yours", "free", "taken"]
    why: str = ""
    hint: str = ""


class WeaverPresence(Struct, frozen=True, kw_only=True):
    """A weaver announces itself to the others."""

    name: str
    version: str
    leads: bool
    blocked: str = ""
    """Why it can read the stream no further; empty: it can."""


class ReadLog(Struct, frozen=True, tag_field="ask", tag="read-log"):
    """Ask for a piece of a worker's log."""

    job: str
    rank: int
    offset: int = 0
    """Position to read from; negative: this many lines before the end."""
    max_bytes: int = 262144
    since_ns: int = 0
    """Omit lines printed earlier, as precisely as the agent knows their times; 0: from any time."""
    unfinished: bool = False
    """Also return the end of a line that is still being written, a progress bar for instance."""


class LogPiece(Struct, frozen=True):
    """A piece of log, whole lines only unless the job has ended."""

    data: bytes
    offset: int
    next_offset: int
    lost_bytes: int = 0
    """Bytes before `offset` that were asked for and had been dropped to bound the log."""
    ended: bool = False
    marks: tuple[tuple[int, int], ...] = ()
    """Pairs (offset, wall time): lines that end up to there, and after the pair before, were printed then."""
    now_ns: int = 0
    """What the agent's clock showed, by which the times are given; 0: unknown."""
    unfinished: bytes = b""
    """The newest part of a line that has no end yet; it comes again as data when it has."""


class ReadBox(Struct, frozen=True, tag_field="ask", tag="read-box"):
    """Ask for what a worker's black box holds now."""

    ref: WorkerRef
    collectives: int = 32
    steps: int = 32


class BoxReading(Struct, frozen=True, kw_only=True):
    """The content of a black box: enough to show it and to judge by it."""

    found: bool
    collectives: list[dict[str, object]] = []
    steps: list[dict[str, int]] = []
    groups: list[dict[str, object]] = []
    hyperparameters: dict[str, object] | list[object] = {}
    metrics: dict[str, object] = {}
    torn: int = 0


class ReadSteps(Struct, frozen=True, tag_field="ask", tag="read-steps"):
    """Ask for the present progress of some ranks."""

    refs: tuple[WorkerRef, ...]


class RankSteps(Struct, frozen=True):
    rank: int
    steps: int
    step_s: float
    """Median of the newest; 0 when there are none."""
    since_s: float
    """Time since the newest ended."""
    paused: bool = False


class StepsReading(Struct, frozen=True):
    """Ranks that are not here, or have no black box, are missing."""

    ranks: tuple[RankSteps, ...] = ()


CheckpointVerb = Literal["list", "verify", "pin", "unpin", "delete", "purge", "damage"]
"""`purge` removes all that a job has in its store, the pinned ones and the newest too; `damage` flips a bit
of its newest one."""
CheckpointProblem = Literal["", "missing", "in-use", "usage", "failed"]


class AskCheckpoints(Struct, frozen=True, kw_only=True, tag_field="ask", tag="checkpoints"):
    """Ask about a job's checkpoints, or for something to be done with one of them."""

    job: str
    place: CheckpointPlace
    verb: CheckpointVerb
    which: str = ""
    """Name of the checkpoint; may be empty only for `list`, which then lists all, and for `purge`. Of
    `damage` the seed that chooses the bit."""
    env: dict[str, str] = {}
    """Those of the job's variables that open its store, attached at sending."""

    def __repr__(self) -> str:  # no credentials in a log
        return f"AskCheckpoints({self.job!r}, {self.verb!r}, {self.which!r})"


class CheckpointAnswer(Struct, frozen=True, kw_only=True):
    """The catalogue, or the one line asked for, as it is after the verb."""

    entries: tuple[CheckpointEntry, ...] = ()
    left_out: int = 0
    """Older ones that did not fit into the answer."""
    problem: CheckpointProblem = ""
    why: str = ""
    """In words: the problem, or what a verification found wrong."""


class AskEvidence(Struct, frozen=True, kw_only=True, tag_field="ask", tag="evidence"):
    """Ask for what a host knows of some ranks; its suspects are sampled for a while from then on."""

    refs: tuple[WorkerRef, ...]
    suspects: tuple[int, ...] = ()
    """Ranks whose stack, log and samples over time are wanted."""
    stacks: tuple[int, ...] = ()
    """Further ranks whose stack is wanted."""
    collectives: int = 32
    others_collectives: int = 4


class AskDumps(Struct, frozen=True, kw_only=True, tag_field="ask", tag="dumps"):
    """Ask the Flight Recorders of some ranks what they have recorded."""

    refs: tuple[WorkerRef, ...]
    within_s: float


class RankDump(Struct, frozen=True, kw_only=True):
    """The answer of one rank's Flight Recorder."""

    rank: int
    dump: Dump | None = None
    written_ns: int = 0
    """Wall-clock time of its host."""
    why: str = ""
    """Why there is none."""


class DumpsAnswer(Struct, frozen=True):
    ranks: tuple[RankDump, ...] = ()


class EvidenceAnswer(Struct, frozen=True):
    ranks: tuple[RankEvidence, ...] = ()


Query = ReadLog | ReadBox | ReadSteps | AskCheckpoints | AskEvidence | AskDumps


class WorkerPulse(Struct, frozen=True, kw_only=True):
    """What one worker did lately. A pulse means progress: `idle_s` counts from the last sign of it."""

    ref: WorkerRef
    pid: int
    steps: int
    step_s: float
    """Median of the newest steps; 0 when there are none."""
    idle_s: float
    phase: str
    phase_s: float
    training_step: int | None = None
    total_steps: int | None = None
    data_wait_s: float = 0.0
    collectives: int = 0
    collective: str = ""
    """The newest collective in words, for example `all_reduce #412 (group 0)`; empty when none."""
    in_collective_s: float = 0.0
    """For how long the newest collective has been in progress; 0 when it has finished."""
    recorder: str = "none"
    metrics: dict[str, float] = {}
    hyperparameters: str = ""
    """JSON as the probe wrote it; sent only when it changed."""
    settings: str = ""
    """JSON of what can be set and what is held, as the probe wrote it; sent only when it changed."""
    offset: int | None = None
    """Training step minus step, if the script reports its training step."""
    config_version: int = 0
    """Of the config that its next step is made with."""
    log_lost: LogLoss | None = None
    """Output that found no room on the disk."""
    copy_trouble: str = ""
    """Why no other node has a copy of its newest state in memory, if one should."""


class Telemetry(Struct, frozen=True, kw_only=True):
    """The agent's heartbeat: batched, lossy, never in the stream."""

    node: str
    session: str
    at_ns: int
    epoch: int
    workers: tuple[WorkerPulse, ...] = ()
    devices: tuple[DeviceReading, ...] = ()
    """New measurements of the host's devices, if there are any."""
