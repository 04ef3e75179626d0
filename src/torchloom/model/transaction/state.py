"""What the weaver knows about the operations of one job. Plain data, changed only by proposer.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from torchloom.model.transaction.messages import Answer, AttemptId
from torchloom.model.transaction.operation import Operation


@dataclass(frozen=True, slots=True)
class ProposerLimits:
    """Times and tries; the two timeouts that ranks keep travel in the proposal."""

    control_timeout_s: float = 1.0
    answer_timeout_s: float = 30.0
    """How long ranks may take to prepare and to arm; after a first report, to report."""
    resend_s: float = 0.2
    """0: another part resends messages."""
    patience_steps: int = 4
    """… or as many of the job's steps, if that is longer."""
    tries: int = 5
    plan_ahead_steps: int = 20
    """An operation for a certain step is begun when it is this near …"""
    plan_ahead_s: float = 2.0
    """… or this near in time."""
    await_first_step: bool = False
    """Ask no rank before Progressed has reported a step: how long a start takes is not known."""


class Round(StrEnum):
    """What is awaited from the ranks."""

    IDLE = "idle"
    PREPARING = "preparing"
    ARMING = "arming"
    CONFIRMED = "confirmed"


@dataclass(slots=True)
class Proposer:
    """All that is known about the operations of one job."""

    limits: ProposerLimits = field(default_factory=ProposerLimits)
    generation: int = 0
    world: int = 0
    gone: dict[int, str] = field(default_factory=dict)
    """Ranks of this generation that ended, and why."""
    step: int = 0
    offset: int | None = None
    """Training step minus step, as the ranks reported it last."""
    step_ns: int = 0
    """The longest that was reported lately; 0: unknown."""
    position: float = 0.0
    """Steps made, plus the share of the one in progress, as known at `position_ns`: to predict a step."""
    position_ns: int = 0
    """0: not known, or the job is paused."""
    pace_ns: int = 0
    """What a step usually takes; 0: unknown."""
    trip_ns: int = 0
    """What a message and its answer lately took beyond a step; 0: unknown."""
    newest: int = 0
    """Highest version ever requested."""
    queue: list[Operation] = field(default_factory=list)
    over: str = ""
    """Why no generation will follow; empty while one may."""
    current: Operation | None = None
    parts: list[Operation] = field(default_factory=list)
    """The operations that are carried out together as `current`; empty when it is one by itself."""
    stage: Round = Round.IDLE
    attempt: int = 0
    """The newest of this generation, counted over all operations."""
    tries: int = 0
    """Attempts for the current operation."""
    guessed: int = 0
    """Those of them that were armed at once: their failure says little about message times."""
    at_step: int = 0
    withdrawn: str = ""
    """After CONFIRM: why it was withdrawn. The ranks may still commit."""
    answers: dict[int, Answer] = field(default_factory=dict)
    """Of the present stage."""
    since_ns: int = 0
    sent_ns: int = 0
    reported_ns: int = 0
    """When the first rank reported the outcome; 0: none has."""

    @property
    def attempt_id(self) -> AttemptId:
        assert self.current is not None
        return AttemptId(self.generation, self.current.version, self.attempt)

    @property
    def reason(self) -> str:
        """The present stage, in words for people."""
        if self.current is None:
            return f"{len(self.queue)} changes wait" if self.queue else "no change is in progress"
        silent = ", ".join(map(str, self.silent()))
        place = f" for step {self.named(self.at_step)}" if self.at_step else ""
        missing = f"rank {silent or 'none'} has not answered"
        return f"operation {self.current.version} is {self.stage}{place}, {missing}"

    @property
    def patience_ns(self) -> int:
        """How long ranks may take to answer."""
        return max(int(self.limits.answer_timeout_s * 1e9), self.limits.patience_steps * self.step_ns)

    def named(self, step: int) -> int:
        """A step as the script counts, if that is known."""
        return step + (self.offset or 0)

    def silent(self) -> list[int]:
        """Ranks whose answer to the present stage is missing and may still come."""
        return [rank for rank in range(self.world) if rank not in self.answers and rank not in self.gone]
