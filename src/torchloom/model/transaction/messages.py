"""The messages between the two sides of a transaction. Plain records: no behaviour, no transport.

The weaver writes *mail* to a rank (through its agent and mailbox), a rank *answers*. Both repeat themselves
freely: any message may be lost, late, doubled or out of order, so every one of them names its attempt and
carries all that is needed to act on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What a transaction does once it is decided. All go through the same protocol."""

    SET = "set"
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    PROBE = "probe"
    """Measure the links between the ranks. Changes nothing."""


BETWEEN = frozenset({Kind.CHECKPOINT, Kind.RESTORE})
"""Kinds that need a whole state: their place for step N is where step N - 1 is over and nothing of step N has
begun (inside `loom.Checkpoint.step`), so before the forward pass that leads to the boundary of N."""


class AttemptId(NamedTuple):
    """One try to carry out one operation. Ordered by time: by generation and attempt, not by version,
    because an operation that waits for a later step is overtaken by newer ones.

    Every try has its own key in the store, because the key of a withdrawn one may already hold ABORT.
    """

    generation: int
    version: int
    attempt: int
    """Counted over all operations of the generation."""

    def __lt__(self, other: object) -> bool:
        return isinstance(other, AttemptId) and self[::2] < other[::2]

    def __gt__(self, other: object) -> bool:
        return isinstance(other, AttemptId) and self[::2] > other[::2]

    def __str__(self) -> str:
        return f"{self.version}.{self.attempt} of generation {self.generation}"


class Phase(IntEnum):
    """What a piece of mail says. The order matters: of one attempt, the higher replaces the lower."""

    PREPARE = 1
    ARM = 2
    CONFIRM = 3
    """All ranks are armed. Never sent before that is known."""
    WITHDRAW = 4


@dataclass(frozen=True, slots=True)
class Proposal:
    """What is proposed, the same for all ranks."""

    attempt: AttemptId
    kind: Kind
    values: Mapping[str, object] = field(default_factory=dict)
    """All that the kind needs: settings by address, the step to restore …"""
    two_phase: bool = False
    """The ranks run it, vote, and undo it everywhere unless it succeeded on all ranks."""
    control_timeout_ns: int = 1_000_000_000
    """Longest time a rank waits at the boundary for a message."""
    vote_timeout_ns: int = 5_000_000_000
    """Longest time a rank waits for the votes of others after its own."""


@dataclass(frozen=True, slots=True)
class Mail:
    """From the weaver to one rank."""

    phase: Phase
    proposal: Proposal
    at_step: int = 0
    """The first step that uses the change: it is applied at the boundary before that step. 0 in PREPARE."""
    unconfirmed: bool = False
    """In WITHDRAW: no rank was or will be sent CONFIRM, so nobody can have committed and asking the store is
    needless. It matters when the store does not answer."""


MAIL_KEPT = 4
"""Attempts in a mailbox. More are never of use: the weaver tries one at a time."""


def post(box: Iterable[Mail], mail: Mail) -> tuple[Mail, ...]:
    """The mailbox after `mail` came: per attempt the highest phase, of attempts the newest few."""
    newest = {held.proposal.attempt: held for held in box}
    held = newest.get(mail.proposal.attempt)
    if held is None or mail.phase > held.phase:
        newest[mail.proposal.attempt] = mail
    return tuple(newest[attempt] for attempt in sorted(newest)[-MAIL_KEPT:])


class Said(StrEnum):
    """What a rank answers. The last seven are final for the attempt."""

    PREPARED = "prepared"
    ARMED = "armed"
    REFUSED = "refused"
    """It cannot be done on this rank; nothing was changed."""
    TOO_LATE = "too late"
    """ARM was read after at_step had been passed."""
    APPLIED = "applied"
    NOT_APPLIED = "not applied"
    """Decided so in the store, or withdrawn before it could be decided."""
    UNDONE = "undone"
    """Committed and run, but not every rank could: the old values are back."""
    BROKEN = "broken"
    """This rank cannot know, or cannot do, what the others do, and ends so that no rank diverges."""
    LEFT = "left"
    """The script ended before at_step."""


FINAL = frozenset(Said) - {Said.PREPARED, Said.ARMED}

Changed = tuple[str, object, object]
"""Address, value before, value after. Of PROBE: `from>to`, nanoseconds for a small message and for a
megabyte."""


@dataclass(frozen=True, slots=True)
class Answer:
    """From one rank to the weaver: its newest answer about an attempt."""

    attempt: AttemptId
    rank: int
    said: Said
    step: int
    """Its next step (one more than it has completed) at the time of the answer."""
    held: bool = False
    """It is paused at that boundary."""
    step_ns: int = 0
    """How long a step takes here; 0 when unknown."""
    anchor: str = ""
    """Whose steps it counts; must be the same on all ranks."""
    why: str = ""
    changed: tuple[Changed, ...] = ()
    offset: int | None = None
    """Training step minus step, if the script reports its training step."""
    raised: bool = False
    """`why` is the traceback of this rank's own failure; else it repeats what another rank reported."""
