"""State of a simulated job: what a rank has recorded, what it is in, and who has met where. No behaviour."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from torchloom.chaos.rank_program import Action, Stop, Work
from torchloom.core.detect.encoding import Recorded
from torchloom.core.detect.own_times import MAX_STEPS
from torchloom.model.windows import PairCount

RING = 1024
BUSY = Work(0)


@dataclass(slots=True)
class SimulatedCollective:
    """A collective as one rank sees it; `end` is when it will be over, as far as that is decided."""

    op: str
    group: str
    seq: int
    bytes: int
    start: float
    waited: bool
    peer: int | None = None
    end: float = inf


@dataclass(slots=True)
class Meeting:
    records: list[SimulatedCollective] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    end: float = inf


@dataclass(slots=True)
class SimulatedRank:
    rank: int
    program: Iterator[Action]
    offset_s: float
    node: str
    groups: dict[str, int]
    entered: dict[str, int] = field(default_factory=dict)
    pairs: dict[tuple[int, str], int] = field(default_factory=dict)
    records: int = 0
    """Ever made; the ring keeps the newest."""
    used: dict[str, None] = field(default_factory=dict)
    """Groups with records, in the order of their first use, as in a black box."""
    counts: tuple[int, tuple[PairCount, ...]] = (0, ())
    """How far it was with each peer when it had made so many records."""
    ring: deque[SimulatedCollective] = field(default_factory=lambda: deque(maxlen=RING))
    pending: list[SimulatedCollective] = field(default_factory=list)
    """Asynchronous ones that may not be over."""
    this_step: list[SimulatedCollective] = field(default_factory=list)
    recorded: Recorded[str] = field(default_factory=Recorded)
    use: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MAX_STEPS))
    done: int = 0
    step_began: float = 0.0
    active: float = 0.0
    busy: Work | Stop = BUSY
    busy_since: float = 0.0
    wake: float = 0.0
    """The worker is busy until then; operations that end meanwhile do not disturb it."""
    joining: bool = False
    blocked: SimulatedCollective | None = None
    died: float = inf
    asked_since: float = inf
    values: dict[str, float] = field(default_factory=dict)
