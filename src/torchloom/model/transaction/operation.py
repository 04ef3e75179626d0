"""Requests of people, their outcomes, and what the proposer receives and wants done. Records only.

Plain dataclasses without unions inside, so that the proposer's state can be part of a snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from torchloom.model.transaction.messages import Answer, Changed, Kind, Mail


@dataclass(frozen=True, slots=True)
class Operation:
    """One requested change. `version` is the operation's number: it grows with each one of the job and is
    never reused. It is no version of the settings (core.steering.versions)."""

    version: int
    kind: Kind
    values: dict[str, object] = field(default_factory=dict)
    two_phase: bool = False
    at_step: int | None = None
    """The step the user named, counted in the present generation; None: as soon as all ranks can.

    The next generation counts anew: what has a training step is counted again there, the rest ends.
    """
    training_step: int | None = None
    """The same step in the script's own count, if that was known when it was named."""
    uncounted: bool = False
    """Of training_step it is not known yet which step of this generation it is."""
    vote_timeout_s: float = 5.0
    step_ns: int = 0
    """How long the job's steps took at the time of the request; 0: unknown."""
    position: float = 0.0
    """Steps made, plus the share of the one in progress, at the time of the request; 0: unknown."""
    after_step: int = 0
    """Not worth a try before this step: the job was found paused short of at_step."""
    alone: bool = False
    """Not together with others: a combined try failed, and a separate one shows whose fault that was."""


class How(StrEnum):
    """How an operation ended."""

    APPLIED = "applied"
    NOT_APPLIED = "not applied"
    DIVERGED = "diverged"
    """Ranks report different outcomes. The protocol excludes that; if it happens, it must be reported."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The recorded end of an operation: applied at one step on all ranks that reached it or on none; why."""

    version: int
    how: How
    reason: str
    generation: int = 0
    at_step: int = 0
    offset: int | None = None
    """Training step minus step, if the ranks that applied it agree on it."""
    attempts: int = 0
    unheard: tuple[int, ...] = ()
    """Ranks that have not reported: they ended or are unreachable. They did or do the same as the others."""
    changed: dict[int, tuple[Changed, ...]] = field(default_factory=dict)
    """Per rank what was there before and after."""
    trouble: dict[int, str] = field(default_factory=dict)
    """Per rank why it failed, undid the change or left."""
    raised: tuple[int, ...] = ()
    """Ranks whose own code failed: their `trouble` is a traceback."""


# -- what happened ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Requested:
    """Somebody requested this."""

    operation: Operation


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Somebody cancelled it."""

    version: int
    by: str
    why: str = ""
    """If no person cancelled it: what made it impossible."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A rank's answer was read."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class RankEnded:
    """A worker's process is gone. Its black box outlives it, so its answers are included."""

    generation: int
    rank: int
    why: str
    answers: tuple[Answer, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationBegan:
    """All ranks of the one before are gone; these are new processes with a new store."""

    generation: int
    world: int


@dataclass(frozen=True, slots=True)
class JobEnded:
    """No generation will follow."""

    why: str


@dataclass(frozen=True, slots=True)
class Progressed:
    """The job is about to make this step of its generation; needed only for what waits for a step."""

    generation: int
    step: int
    step_ns: int = 0
    offset: int | None = None
    """Training step minus step, if it is known."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed (see `wake_at_ns`)."""


Event = Requested | Cancelled | Answered | RankEnded | GenerationBegan | JobEnded | Progressed | Ticked


# -- what is wanted -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Put mail into a rank's mailbox. It may be lost: what matters is sent again."""

    generation: int
    rank: int
    mail: Mail
    reason: str


@dataclass(frozen=True, slots=True)
class Tell:
    """The operation has ended: record it and notify the caller."""

    outcome: Outcome


Effect = Send | Tell
