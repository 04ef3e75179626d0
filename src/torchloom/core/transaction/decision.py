"""How ranks agree: names and values of the registers in the generation's own store, and what to propose.

A register is a key that is only ever written by `compare_set(key, "", value)`: the first writer wins and
every later one receives the winner's value. Asking again after an error is therefore harmless. The control
plane has no access to the store and no part in the decision.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchloom.model.transaction.messages import AttemptId

COMMIT = "COMMIT"
ABORT = "ABORT"
KEEP = "KEEP"
UNDO = "UNDO"
OK = "ok"
FAILED = "failed: "
VOTE_CHARS = 200
"""How much of a failure's text the other ranks receive through the store: its end."""


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
