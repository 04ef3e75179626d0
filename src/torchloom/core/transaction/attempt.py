"""What one rank knows of one attempt. Changed only by rank.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from torchloom.core.transaction.decision import decision_key, settlement_key
from torchloom.model.transaction.messages import BETWEEN, Changed, Proposal

NEVER_BETWEEN = "the script did not call loom.Checkpoint.step after the step"


class Stage(IntEnum):
    """How far an attempt is on this rank."""

    NEW = 0
    ASKED = 1
    """Does the store answer at all? Armed with a dead one, the worker could only end."""
    PREPARED = 2
    ARMED = 3
    WAITING = 4
    DECIDING = 5
    RUNNING = 6
    VOTING = 7
    COUNTING = 8
    SETTLING = 9
    UNDOING = 10
    CLOSED = 11


@dataclass(slots=True)
class Attempt:
    """Proposal, stage, and the answers received since."""

    proposal: Proposal
    stage: Stage = Stage.NEW
    at_step: int = 0
    confirmed: bool = False
    withdrawn: bool = False
    until_ns: int = 0
    """When the present stage ends at the latest; 0: it has just begun."""
    proposing: str = ""
    has_run: bool = False
    trouble: str = ""
    changed: tuple[Changed, ...] = ()
    votes: dict[int, str] = field(default_factory=dict)
    why: str = ""

    def enter(self, stage: Stage) -> None:
        self.stage, self.until_ns = stage, 0

    def until(self, now_ns: int, timeout_ns: int) -> int:
        """When the present stage ends, counted from the first time that this was asked."""
        self.until_ns = self.until_ns or now_ns + timeout_ns
        return self.until_ns

    def too_late(self, place: int, offset: int, alone: bool) -> str:
        """Why a rank at that step cannot be armed any more, in the script's count; empty if it can.

        A rank that waits holds up others in their next step. One that has gone past this very place could not
        say so before the wait is over: so only attempts that need no other rank are armed for the present
        place.
        """
        if self.at_step >= place + (not alone):
            return ""
        return f"step {self.at_step + offset} is past or too near, this rank is at step {place + offset}"

    @property
    def is_between(self) -> bool:
        """Its place is between two steps and not at the boundary."""
        return self.proposal.kind in BETWEEN

    @property
    def store_key(self) -> str:
        """The register this stage writes."""
        id_ = self.proposal.attempt
        return settlement_key(id_) if self.stage is Stage.SETTLING else decision_key(id_)
