"""Replicas that ask for quorums, for tests of the lighthouse's rules."""

from __future__ import annotations

from torchloom.core.quorum import QuorumCandidate, QuorumRules, QuorumState, form, settle
from torchloom.model.quorum import QuorumMember


def member(name: str, *, step: int = 0, shrink_only: bool = False, commit_failures: int = 0) -> QuorumMember:
    return QuorumMember(name, step, 1, shrink_only, commit_failures, name.encode())


def ask(state: QuorumState, now_s: float, *members: QuorumMember) -> None:
    for one in members:
        state.candidates[one.replica_id] = QuorumCandidate(f"door-{one.replica_id}", now_s, now_s, one)


def trained(*names: str) -> QuorumState:
    """A state after a first quorum of these."""
    state = QuorumState()
    ask(state, 0.0, *map(member, names))
    settle(state, form(0.0, state, QuorumRules(size=len(names))).members)
    return state


def ids(formed: tuple[QuorumMember, ...]) -> list[str]:
    return [one.replica_id for one in formed]
