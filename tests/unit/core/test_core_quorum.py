"""Who is in a quorum, and why: the rules of the lighthouse as tables of who asked when."""

from __future__ import annotations

from quorum_story import ask, ids, member, trained

from torchloom.core.quorum import (
    QuorumCandidate,
    QuorumRules,
    QuorumState,
    form,
    leave,
    recalled,
    repeated,
    settle,
)

RULES = QuorumRules(size=3)


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


def test_a_member_that_missed_the_answer_gets_it_again() -> None:
    """The lighthouse was killed when only some had their answer; these wait in a collective."""
    state = trained("a", "b", "c")
    again = repeated(1.0, state, RULES, member("a"))
    assert ids(again.members) == ["a", "b", "c"] and again.reason == "a has missed the answer"
    assert not repeated(1.1, state, RULES, member("a")).members, "once only"
    assert ids(repeated(1.2, state, RULES, member("c")).members) == ["a", "b", "c"]


def test_a_new_request_is_no_repetition() -> None:
    state = trained("a", "b")
    assert not repeated(1.0, state, RULES, member("a", step=1)).members
    assert not repeated(1.0, state, RULES, member("a", commit_failures=1)).members
    assert not repeated(1.0, state, RULES, member("x")).members


def test_the_last_answer_is_void_when_one_of_its_members_has_ended() -> None:
    state = trained("a", "b")
    assert not repeated(6.0, state, RULES, member("a")).members, "b was last seen 6 s ago"
    leave(state, "door-b")
    state.candidates["b"] = QuorumCandidate("door-b", 1.0)  # it was stopped, and continues
    assert not repeated(1.0, state, RULES, member("a")).members


def leave_out(*names: str) -> QuorumState:
    state = trained("a", "b", "c")
    state.left_out = {f"door-{name}": "slow" for name in names}
    return state


def test_one_that_is_left_out_is_neither_waited_for_nor_taken() -> None:
    state = leave_out("c")
    ask(state, 1.0, member("a"))
    assert not form(1.0, state, RULES).members, "b is waited for as ever"
    ask(state, 1.0, member("b"))
    assert ids(form(1.0, state, RULES).members) == ["a", "b"]
    ask(state, 1.0, member("c"))
    assert ids(form(1.0, state, RULES).members) == ["a", "b"]
    settle(state, form(1.0, state, RULES).members)
    assert state.candidates["c"].asked_s == 1.0, "its request stays open"
    state.left_out = {}
    ask(state, 2.0, member("a"), member("b"))
    assert ids(form(2.0, state, RULES).members) == ["a", "b", "c"]


def test_it_is_recalled_when_the_others_cannot_do_without_it() -> None:
    state = leave_out("c")
    assert not recalled(1.0, state, RULES)
    assert "only 2 of at least 3" in recalled(1.0, state, QuorumRules(3, min_replicas=3))
    leave(state, "door-a")
    assert not recalled(1.0, state, RULES)
    leave(state, "door-b")
    assert recalled(1.0, state, RULES) == "no other replica of the last quorum is alive"


def test_a_fresh_replica_does_not_begin_anew_beside_the_only_weights_there_are() -> None:
    state = leave_out("c")
    leave(state, "door-a")
    leave(state, "door-b")
    ask(state, 1.0, member("a2"))
    assert recalled(1.0, state, RULES)
