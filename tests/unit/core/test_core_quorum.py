"""Who is in a quorum, and why: the rules of the lighthouse as tables of who asked when."""

from __future__ import annotations

from torchloom.core.quorum import QuorumCandidate, QuorumRules, QuorumState, form, leave, settle
from torchloom.model.quorum import QuorumMember

RULES = QuorumRules(size=3)


def member(name: str, *, shrink_only: bool = False, commit_failures: int = 0) -> QuorumMember:
    return QuorumMember(name, 0, 1, shrink_only, commit_failures, name.encode())


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


def test_the_first_quorum_waits_for_all_replicas_of_the_job() -> None:
    state = QuorumState()
    ask(state, 0.0, member("b"), member("a"))
    waiting = form(1.0, state, RULES)
    assert not waiting.members and waiting.reason == "waiting for 1 of 3 replicas"
    ask(state, 2.0, member("c"))
    assert ids(form(2.0, state, RULES).members) == ["a", "b", "c"]


def test_the_first_quorum_does_not_wait_for_ever() -> None:
    state = QuorumState()
    ask(state, 0.0, member("a"))
    state.candidates["a"].seen_s = 61.0
    assert ids(form(61.0, state, RULES).members) == ["a"]


def test_a_quorum_needs_the_fewest_replicas_that_the_job_accepts() -> None:
    state = QuorumState()
    ask(state, 0.0, member("a"))
    state.candidates["a"].seen_s = 100.0
    assert "1 of at least 2 replicas" in form(100.0, state, QuorumRules(3, min_replicas=2)).reason


def test_survivors_form_a_quorum_the_moment_a_death_is_known() -> None:
    state = trained("a", "b", "c")
    ask(state, 1.0, member("a"), member("b"))
    assert not form(1.0, state, RULES).members, "c may still ask"
    assert leave(state, "door-c") == ("c",)
    assert ids(form(1.0, state, RULES).members) == ["a", "b"]


def test_survivors_never_wait_for_a_replica_that_is_only_starting() -> None:
    state = trained("a", "b")
    leave(state, "door-b")
    state.candidates["b2"] = QuorumCandidate("door-b2", 1.0)  # it sends heartbeats and builds its model
    ask(state, 1.0, member("a"))
    assert ids(form(1.0, state, RULES).members) == ["a"]


def test_a_newcomer_is_taken_when_the_survivors_ask_next() -> None:
    state = trained("a", "b")
    ask(state, 1.0, member("c"))
    assert not form(1.0, state, RULES).members
    ask(state, 1.5, member("a"), member("b"))
    assert ids(form(1.5, state, RULES).members) == ["a", "b", "c"]


def test_a_death_that_nobody_reports_is_seen_by_its_heartbeat() -> None:
    state = trained("a", "b")
    ask(state, 6.0, member("a"))
    assert ids(form(6.0, state, RULES).members) == ["a"], "b was last seen 6 s ago"


def test_a_minority_forms_no_quorum_beside_living_survivors() -> None:
    state = trained("a", "b", "c")
    ask(state, 0.0, member("a"))
    for candidate in state.candidates.values():
        candidate.seen_s = 100.0
    assert "not a majority" in form(100.0, state, RULES).reason


def test_a_majority_waits_for_a_straggler_and_then_leaves_it_out() -> None:
    state = trained("a", "b", "c")
    ask(state, 1.0, member("a"), member("b"))
    for candidate in state.candidates.values():
        candidate.seen_s = 62.0
    assert not form(60.0, state, RULES).members
    assert ids(form(62.0, state, RULES).members) == ["a", "b"]


def test_who_may_only_shrink_takes_no_newcomer() -> None:
    state = trained("a", "b")
    ask(state, 1.0, member("a", shrink_only=True), member("b"), member("c"))
    assert ids(form(1.0, state, RULES).members) == ["a", "b"]


def test_a_quorum_has_a_new_number_only_if_its_process_group_must_change() -> None:
    state = trained("a", "b")
    first = state.quorum_id
    ask(state, 1.0, member("a"), member("b"))
    assert settle(state, form(1.0, state, RULES).members) == first
    ask(state, 2.0, member("a", commit_failures=1), member("b"))
    assert settle(state, form(2.0, state, RULES).members) == first + 1
    leave(state, "door-b")
    ask(state, 3.0, member("a"))
    assert settle(state, form(3.0, state, RULES).members) == first + 2
