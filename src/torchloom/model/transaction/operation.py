"""What a person asks for, what becomes of it, and what the proposer hears and wants. Records only.

Plain dataclasses without unions inside, so that the proposer's state can be part of a snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from torchloom.model.transaction.messages import Answer, Changed, Kind, Mail


@dataclass(frozen=True, slots=True)
class Operation:
    """One change somebody asked for. `version` grows with every operation of the job and is never reused."""

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
    """How long the job's steps took when it was asked for; 0: unknown."""
    position: float = 0.0
    """Steps made, with the share of the one under way, when it was asked for; 0: unknown."""
    after_step: int = 0
    """Not worth a try before this step: the job was found paused short of at_step."""
    alone: bool = False
    """Not together with others: so tried, it failed, and it must be found out whose fault that was."""


class How(StrEnum):
    """How an operation ended."""

    APPLIED = "applied"
    NOT_APPLIED = "not applied"
    DIVERGED = "diverged"
    """Ranks say different things. The protocol excludes it; should it ever happen, it must be told."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The told end of an operation: applied at one step on all ranks that reached it, or on none, and why."""

    version: int
    how: How
    reason: str
    generation: int = 0
    at_step: int = 0
    offset: int | None = None
    """Training step minus step, if the ranks that applied it agree on it."""
    attempts: int = 0
    unheard: tuple[int, ...] = ()
    """Ranks that have not reported: they ended, or are out of reach. What they do or did is the same."""
    changed: dict[int, tuple[Changed, ...]] = field(default_factory=dict)
    """Per rank what was there before and after."""
    trouble: dict[int, str] = field(default_factory=dict)
    """Per rank the traceback of what went wrong."""


# -- what happened ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Requested:
    """Somebody wants this."""

    operation: Operation


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Somebody does not want it any more."""

    version: int
    by: str
    why: str = ""
    """If it was not a person's wish: what made it impossible."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A rank's answer was read."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class RankEnded:
    """A worker's process is gone. Its black box outlives it: what it had answered comes along."""

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
    """The operation has ended: record it and tell whoever asked."""

    outcome: Outcome


Effect = Send | Tell
