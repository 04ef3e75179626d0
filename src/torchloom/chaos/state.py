"""State of a simulated job: what a rank has recorded, what it is in, and who has met where. No behaviour."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from torchloom.chaos.program import Action, Stop, Work
from torchloom.core.detect.slow import MAX_STEPS
from torchloom.core.detect.window import StepTimes

RING = 32
BUSY = Work(0)


@dataclass(slots=True)
class Record:
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
    records: list[Record] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    end: float = inf


@dataclass(slots=True)
class Rank:
    rank: int
    program: Iterator[Action]
    offset_s: float
    node: str
    groups: dict[str, int]
    entered: dict[str, int] = field(default_factory=dict)
    pairs: dict[tuple[int, str], int] = field(default_factory=dict)
    ring: deque[Record] = field(default_factory=lambda: deque(maxlen=RING))
    pending: list[Record] = field(default_factory=list)
    """Asynchronous ones that may not be over."""
    this_step: list[Record] = field(default_factory=list)
    steps: deque[StepTimes] = field(default_factory=lambda: deque(maxlen=MAX_STEPS))
    waits: dict[str, deque[int]] = field(default_factory=dict)
    use: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MAX_STEPS))
    done: int = 0
    step_began: float = 0.0
    active: float = 0.0
    busy: Work | Stop = BUSY
    busy_since: float = 0.0
    wake: float = 0.0
    """Until then it is at work, and what ends meanwhile does not disturb it."""
    joining: bool = False
    blocked: Record | None = None
    died: float = inf
    asked_since: float = inf
    values: dict[str, float] = field(default_factory=dict)
