"""Which replicas of a torchft job train together: the rules of our lighthouse. Time is an argument.

They are torchft's own rules (`quorum_compute` in its lighthouse) with three differences. A replica whose
process is known to have ended counts as dead at once, not after a heartbeat timeout. Survivors wait for each
other, never for a replica that is only starting. The first quorum waits for all replicas of the job, so that
a run does not depend on which of them started first.
"""

from __future__ import annotations

from msgspec import Struct, field

from torchloom.model.quorum import QuorumMember


class QuorumRules(Struct, frozen=True):
    size: int
    """Replicas of the job."""
    min_replicas: int = 1
    heartbeat_timeout_s: float = 5.0
    """For replicas whose end nobody reports, for example on a host that lost power."""
    join_timeout_s: float = 60.0
    """How long those who have asked wait for members of the previous quorum that have not."""


class QuorumCandidate(Struct):
    """A replica's manager, as the lighthouse knows it."""

    door: str
    """Which incarnation of which replica it belongs to."""
    seen_s: float
    """Its last heartbeat or request."""
    asked_s: float | None = None
    """Since when it has been waiting for a quorum."""
    member: QuorumMember | None = None


class QuorumState(Struct):
    candidates: dict[str, QuorumCandidate] = field(default_factory=dict)
    """By replica id."""
    previous: tuple[str, ...] = ()
    """Replica ids of the last quorum."""
    quorum_id: int = 0
    formed: bool = False
    """Whether there has ever been one."""


class Formed(Struct, frozen=True):
    """A quorum, or only the reason why there is none yet."""

    members: tuple[QuorumMember, ...]
    reason: str


def alive(now_s: float, state: QuorumState, rules: QuorumRules) -> dict[str, QuorumCandidate]:
    return {
        id: candidate
        for id, candidate in state.candidates.items()
        if now_s - candidate.seen_s < rules.heartbeat_timeout_s
    }


def form(now_s: float, state: QuorumState, rules: QuorumRules) -> Formed:
    """The members of a new quorum, in the order of their replica ids."""
    living = alive(now_s, state, rules)
    asking = {id: c for id, c in living.items() if c.asked_s is not None and c.member is not None}
    members = tuple(c.member for _, c in sorted(asking.items()) if c.member is not None)
    if not members:
        return Formed((), "no replica asks for a quorum")
    if any(member.shrink_only for member in members) and state.previous:
        members = tuple(member for member in members if member.replica_id in state.previous)
    if len(members) < rules.min_replicas:
        return Formed((), f"{len(members)} of at least {rules.min_replicas} replicas have asked")
    survivors = [id for id in state.previous if id in living]
    absent = [id for id in survivors if id not in asking]
    if state.formed and survivors and not absent:
        return Formed(members, f"all {len(survivors)} survivors of the previous quorum have asked")
    waited_s = now_s - min(c.asked_s for c in asking.values() if c.asked_s is not None)
    if state.formed and survivors:
        if 2 * (len(survivors) - len(absent)) <= len(survivors):
            return Formed((), f"{len(absent)} of {len(survivors)} survivors have not asked: not a majority")
        waiting_for = f"{len(absent)} of {len(survivors)} survivors of the previous quorum"
    else:
        expected = len(living) if state.formed else max(rules.size, len(living))
        if len(asking) >= expected:
            return Formed(members, f"all {expected} replicas have asked")
        waiting_for = f"{expected - len(asking)} of {expected} replicas"
    if waited_s < rules.join_timeout_s:
        return Formed((), f"waiting for {waiting_for}")
    return Formed(members, f"{waiting_for} did not ask within {rules.join_timeout_s:g} s")


def settle(state: QuorumState, members: tuple[QuorumMember, ...]) -> int:
    """Record a quorum and return its id: a new one if the members or their process group must change."""
    ids = tuple(member.replica_id for member in members)
    if not state.formed or ids != state.previous or any(member.commit_failures for member in members):
        state.quorum_id += 1
    state.previous, state.formed = ids, True
    for id in ids:
        state.candidates[id].asked_s = state.candidates[id].member = None
    return state.quorum_id


def leave(state: QuorumState, door: str) -> tuple[str, ...]:
    """The incarnation behind this door has ended. Returns the replica ids that were its."""
    ids = tuple(id for id, candidate in state.candidates.items() if candidate.door == door)
    for id in ids:
        del state.candidates[id]
    return ids
