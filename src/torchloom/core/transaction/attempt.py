"""One attempt of a change: what a rank knows of it, and the registers through which the ranks agree.

A register is a key in the generation's own store that is only ever written by `compare_set(key, "", value)`:
the first writer wins and every later one receives the winner's value. Asking again after an
error is harmless. The control plane has no access to the store and no part in the decision. Only rank.py
changes an Attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from torchloom.model.transaction.messages import BETWEEN, AttemptId, Changed, Proposal

NEVER_BETWEEN = "the script did not call loom.Checkpoint.step after the step"
COMMIT = "COMMIT"
ABORT = "ABORT"
KEEP = "KEEP"
UNDO = "UNDO"
OK = "ok"
FAILED = "failed: "
VOTE_CHARS = 200
"""How much of a failure's text the other ranks receive through the store: its end."""


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


def decision_key(attempt: AttemptId) -> str:
    """COMMIT or ABORT."""
    return f"loom/{attempt.generation}/{attempt.version}.{attempt.attempt}"


def settlement_key(attempt: AttemptId) -> str:
    """KEEP or UNDO, of a two-phase attempt."""
    return decision_key(attempt) + "/settlement"


def vote_key(attempt: AttemptId, rank: int) -> str:
    """Whether the attempt went well on that rank."""
    return f"{decision_key(attempt)}/vote/{rank}"


def vote(trouble: str) -> str:
    return FAILED + trouble[-VOTE_CHARS:] if trouble else OK


def to_propose(*, confirmed: bool, withdrawn: bool, superseded: bool, timed_out: bool) -> str:
    """What an armed rank at the boundary proposes; "" while it should wait.

    CONFIRM proves that every rank is armed, so only then may COMMIT be proposed. ABORT is always allowed.
    """
    if withdrawn:
        return ABORT
    if confirmed:
        return COMMIT
    return ABORT if superseded or timed_out else ""


def to_settle(votes: Mapping[int, str], world: int, *, timed_out: bool) -> tuple[str, str]:
    """What a rank proposes once it has voted, and why; ("", …) while it should wait."""
    for rank in sorted(votes):
        if votes[rank] != OK:
            return UNDO, f"rank {rank} {votes[rank]}"
    missing = [rank for rank in range(world) if rank not in votes]
    if not missing:
        return KEEP, "it went well on every rank"
    silent = "no vote of rank " + ", ".join(map(str, missing))
    return (UNDO, f"{silent} in time") if timed_out else ("", silent)


def why_settled(votes: Mapping[int, str], world: int) -> str:
    """Words for what others settled."""
    if all(votes.get(rank) == OK for rank in range(world)):
        return "a rank had stopped waiting for the votes"
    return to_settle(votes, world, timed_out=True)[1]
