"""Operations on a running job as the fleet keeps them, and what the control service reports about its config.

Records only; the rules are in core/steering/driver.py and core/transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct, field

from torchloom.model.transaction.config import Schedule
from torchloom.model.transaction.messages import Changed, Kind

OperationState = Literal["waiting", "preparing", "arming", "confirmed", "applied", "not applied", "diverged"]
ENDED_OPERATION: frozenset[OperationState] = frozenset({"applied", "not applied", "diverged"})
Mode = Literal["hold", "scale"]


class Origin(StrEnum):
    """Who requested an operation."""

    PERSON = "person"
    POLICY = "policy"
    DRAIN = "drain"
    """A person drained a node, and the job is saved before it leaves."""


ConfigChoice = Literal["keep", "revert"]


class OperationRecord(Struct, kw_only=True):
    """One requested change: who, why, and its outcome."""

    id: str
    version: int
    """The number of the operation among all operations of the job."""
    kind: Kind
    values: dict[str, Any] = field(default_factory=dict)
    by: str
    why: str = ""
    state: OperationState = "waiting"
    reason: str = ""
    """Its progress, or how it ended, in a sentence."""
    asked_at_ns: int = 0
    ended_at_ns: int = 0
    generation: int = 0
    at_step: int | None = None
    """Wanted, then real: the first step of that generation which uses it."""
    training_step: int | None = None
    """The same in the script's own count, if that is known."""
    attempts: int = 0
    changed: tuple[Changed, ...] = ()
    """Address, before, after, as the ranks reported; where they differ, those of the lowest rank."""
    differing: dict[int, tuple[Changed, ...]] = field(default_factory=dict)
    """By rank, only where a rank reported other values than `changed`."""
    trouble: dict[int, str] = field(default_factory=dict)
    """By rank why it failed, undid the change or left."""
    raised: tuple[int, ...] = ()
    """Ranks whose own code failed: their `trouble` is a traceback."""
    unheard: tuple[int, ...] = ()
    cancelled: bool = False
    """Somebody cancelled it."""
    reverts: int | None = None
    """The operation whose settings it goes back to, if it is a revert; 0: those before any change."""
    config_version: int = 0
    """The version of the settings that it made; 0: none (yet)."""
    origin: Origin = Origin.PERSON
    incident: str = ""
    """The incident because of which a policy wants it."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED_OPERATION


@dataclass(frozen=True, slots=True)
class PlannedDifference:
    """One place that a change would set."""

    address: str
    before: object
    after: object


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """What a change will do, as far as that is known at the time of the request."""

    operation: str
    """The operation to follow; empty for a dry run."""
    differences: tuple[PlannedDifference, ...] = ()
    at_step: int | None = None
    """The training step that the user named."""
    notes: tuple[str, ...] = ()
    """Warnings for the person who asked."""


@dataclass(frozen=True, slots=True)
class KnownSetting:
    """One setting of a job: its allowed values, and its present value in every place."""

    name: str
    type: str
    allowed: str
    """In words."""
    description: str = ""
    places: tuple[tuple[str, object], ...] = ()
    """Address and value now; one place for a setting of the script's own."""
    optional: bool = False
    """None is a value of it."""
    minimum: float | None = None
    maximum: float | None = None
    below: float | None = None
    """As maximum, but itself not allowed."""
    choices: tuple[str, ...] = ()
    count: int = 0
    """How many numbers, if it takes a fixed count of them."""


@dataclass(frozen=True, slots=True)
class HeldView:
    """A place whose value differs from the one the script set."""

    address: str
    value: object
    mode: Mode
    own: object


@dataclass(frozen=True, slots=True)
class KnownConfig:
    """A job's config now."""

    settings: tuple[KnownSetting, ...] = ()
    held: tuple[HeldView, ...] = ()
    schedule: Schedule = ()
    paused: bool = False
    live: bool = False
    """Whether workers reported it; otherwise only the schedule is known."""
    optimizers: tuple[str, ...] = ()
    """Names of the optimizers' classes; `optimizer0` in an address is the first."""
