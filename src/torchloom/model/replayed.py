"""An incident replayed: the recorded events, applied to the core again one by one, and what came of each."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from torchloom.model.effects import Effect

Recorded = Literal["same", "differs", "not recorded"]
"""Whether the stream has this decision. Mail to ranks is never recorded: it follows from the stream."""


class StateChange(Struct, frozen=True):
    """One thing in the core's state that an event changed. Empty: it was not there."""

    what: str
    before: str
    after: str


class ReplayedDecision(Struct, frozen=True):
    """An effect that the core asked for, and what the stream has of it."""

    effect: Effect
    ranks: tuple[int, ...] = ()
    """Of the job, if the effect is about some of its workers."""
    recorded: Recorded = "not recorded"


class ReplayedStep(Struct, frozen=True, kw_only=True):
    """One event of the stream and what the core made of it."""

    seq: int
    at_ns: int
    kind: str
    text: str
    changes: tuple[StateChange, ...] = ()
    decisions: tuple[ReplayedDecision, ...] = ()


class Replay(Struct, frozen=True, kw_only=True):
    """The events around one incident."""

    incident: str
    job: str
    steps: tuple[ReplayedStep, ...] = ()
    left_out: int = 0
    """Steps in the middle that are not in `steps`, because there are too many."""
    dropped_before: int = 0
    """Events before this place are no longer kept, and some of them belong to the incident; 0: all are."""
    checked: int = 0
    """Decisions that the stream has recorded."""
    differing: int = 0
    """Those of them that this replay did not come to."""
