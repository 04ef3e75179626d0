"""Which replicas of a torchft job train together: the rules of our lighthouse. Time is an argument.

They are torchft's own rules (`quorum_compute` in its lighthouse) with seven differences. A replica whose
process is known to have ended counts as dead at once, not after a heartbeat timeout. Survivors wait for each
other, never for a replica that is only starting. The first quorum waits for all replicas of the job, so that
a run does not depend on which of them started first. A member that repeats its request gets the answer that
it missed (`repeated`): the others have that answer and wait for it in a collective. A replica that a policy
leaves out because it is slow takes part in no quorum as long as the others can do without it (`recalled`).
torchft takes replicas with the same number of steps for equal. One that was cut off may have committed a step
that the others repeated without it: it gets their weights (`_outdated`). Replicas that cannot reach each
other are not in one quorum (core/broken_links.py); torchft would try that for ever.
"""

from __future__ import annotations

from collections.abc import Container

from msgspec import Struct, field

from torchloom.model.quorum import CutOff, QuorumMember

_PARTED_KEPT = 256


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
    answered: dict[str, QuorumMember] = field(default_factory=dict)
    """The members of the last quorum as they asked, by replica id; empty once one of them has ended."""
    again: set[str] = field(default_factory=set)
    """Which of them were answered a second time."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Why a policy leaves this incarnation of a replica out, by door."""
    cut_off: dict[str, CutOff] = field(default_factory=dict)
    """Incarnations of replicas that cannot reach all others, by door."""
    parted: dict[str, int] = field(default_factory=dict)
    """At which step the others went on without a former member, by replica id. Up to it they are equal."""
    outdated: dict[str, int] = field(default_factory=dict)
    """Members of the last quorum that count steps which the others have made without them, and the step that
    they are given, so that torchft has them heal."""


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


def _eligible(now_s: float, state: QuorumState, rules: QuorumRules) -> dict[str, QuorumCandidate]:
    return {id: c for id, c in alive(now_s, state, rules).items() if not is_held(state, c.door)}


def is_held(state: QuorumState, door: str) -> bool:
    """Whether what is behind this door takes part in no quorum at present."""
    cut = state.cut_off.get(door)
    return door in state.left_out or (cut is not None and cut.out)


def _held(state: QuorumState) -> list[str]:
    return [door for door in {**state.left_out, **state.cut_off} if is_held(state, door)]


def recalled(now_s: float, state: QuorumState, rules: QuorumRules) -> str:
    """Why the others cannot do without the replicas that are left out; empty if they can.

    If all others have died, what is left out has the only weights there are.
    """
    if not _held(state):
        return ""
    rest = _eligible(now_s, state, rules)
    if state.formed and not any(id in rest for id in state.previous):
        return "no other replica of the last quorum is alive"
    if len(rest) < rules.min_replicas:
        return f"only {len(rest)} of at least {rules.min_replicas} replicas are left"
    return ""


def repeated(now_s: float, state: QuorumState, rules: QuorumRules, member: QuorumMember) -> Formed:
    """The last quorum again, for a member that sends the very same request: it has missed the answer, because
    its connection broke or the lighthouse was killed, while others may have received it. Once for each, so
    that a script that asks twice without a commit is not kept from a newer quorum."""
    living = alive(now_s, state, rules)
    if state.answered.get(member.replica_id) != member or member.replica_id in state.again:
        return Formed((), "it asks for a new quorum")
    if not all(id in living for id in state.answered):
        return Formed((), "a member of that quorum is not alive any more")
    state.again.add(member.replica_id)
    return Formed(tuple(state.answered.values()), f"{member.replica_id} has missed the answer")


def failed_together(state: QuorumState, members: tuple[QuorumMember, ...]) -> bool:
    """Whether the last quorum made no step although all of its members are alive and ask again."""
    asking = {member.replica_id for member in members}
    failed = any(member.commit_failures for member in members if member.replica_id in state.answered)
    return failed and asking >= state.answered.keys()


def form(now_s: float, state: QuorumState, rules: QuorumRules) -> Formed:
    """The members of a new quorum, in the order of their replica ids."""
    living = _eligible(now_s, state, rules)
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
        expected = len(living) if state.formed else max(rules.size - len(_held(state)), len(living))
        if len(asking) >= expected:
            return Formed(members, f"all {expected} replicas have asked")
        waiting_for = f"{expected - len(asking)} of {expected} replicas"
    if waited_s < rules.join_timeout_s:
        return Formed((), f"waiting for {waiting_for}")
    return Formed(members, f"{waiting_for} did not ask within {rules.join_timeout_s:g} s")


def settle(state: QuorumState, members: tuple[QuorumMember, ...]) -> int:
    """Record a quorum and return its id: a new one if the members or their process group must change."""
    ids = tuple(member.replica_id for member in members)
    state.outdated = _outdated(state, members)
    _part(state, members)
    if not state.formed or ids != state.previous or any(member.commit_failures for member in members):
        state.quorum_id += 1
    state.previous, state.formed = ids, True
    state.answered, state.again = {member.replica_id: member for member in members}, set()
    for id in ids:
        state.candidates[id].asked_s = state.candidates[id].member = None
    return state.quorum_id


def _outdated(state: QuorumState, members: tuple[QuorumMember, ...]) -> dict[str, int]:
    """Who counts as many steps as the most, but perhaps not the same ones: all of them but one."""
    stayed = _stayed(state, members)

    def equal(member: QuorumMember) -> bool:
        """Whether nobody can have made its newest step without it."""
        if member in stayed or member.step <= state.parted.get(member.replica_id, -1):
            return True
        return not stayed and member.replica_id not in state.parted  # all begin anew

    newest = max(member.step for member in members)
    most = [member for member in members if member.step == newest]
    source = next(filter(equal, most), most[0])
    others = [member for member in most if member is not source and not equal(member)]
    return {member.replica_id: newest - 1 for member in others} if newest else {}


def _part(state: QuorumState, members: tuple[QuorumMember, ...]) -> None:
    newest = max((member.step for member in _stayed(state, members)), default=-1)
    ids = {member.replica_id for member in members}
    for id in ids:
        state.parted.pop(id, None)
    for id in state.previous:
        if id not in ids:
            state.parted.setdefault(id, newest)
    while len(state.parted) > _PARTED_KEPT:
        del state.parted[next(iter(state.parted))]


def _stayed(state: QuorumState, members: tuple[QuorumMember, ...]) -> list[QuorumMember]:
    """Those that were in the quorum before."""
    return [member for member in members if member.replica_id in state.previous]


def leave(state: QuorumState, door: str) -> tuple[str, ...]:
    """The incarnation behind this door has ended. Returns the replica ids that were its."""
    return _forget(state, tuple(id for id, c in state.candidates.items() if c.door == door))


def fall_silent(
    now_s: float, state: QuorumState, rules: QuorumRules, near: Container[str]
) -> tuple[str, ...]:
    """Members of the last quorum that have sent nothing for too long: the others must not wait for them in a
    collective. One that is alive is a candidate again as soon as it is reached. `near`: doors of the
    lighthouse's own node, where somebody sees who has ended."""
    living = alive(now_s, state, rules)
    known = [(id, state.candidates[id]) for id in state.previous if id in state.candidates]
    return _forget(state, tuple(id for id, c in known if id not in living and c.door not in near))


def excuse(state: QuorumState, late_s: float) -> None:
    """The lighthouse itself did not run for so long, and received nothing: nobody was silent meanwhile."""
    for candidate in state.candidates.values():
        candidate.seen_s += late_s


def _forget(state: QuorumState, ids: tuple[str, ...]) -> tuple[str, ...]:
    for id in ids:
        del state.candidates[id]
        if id in state.answered:
            state.answered = {}
    return ids
