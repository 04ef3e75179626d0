"""Replicas that reach the lighthouse and not each other: who stays in the quorum, and who is left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from quorum_story import ask, ids, member, trained

from torchloom.core.broken_links import LONGEST_S, STEADY_S, FailedMember, apart, link, steady_s
from torchloom.core.quorum import QuorumRules, QuorumState, failed_together, form, is_held, recalled, settle
from torchloom.model.quorum import CutOff

RULES = QuorumRules(size=3)


def at(*nodes: str, step: int = 7) -> list[FailedMember]:
    """A replica on each of these nodes, in this order."""
    return [FailedMember(f"t-r{index}.g1", node, step) for index, node in enumerate(nodes)]


def between(one: str, other: str) -> set[tuple[str, str]]:
    """All links between two groups of nodes, named by letters."""
    return {link(a, b) for a in one for b in other}


def test_of_two_replicas_that_cannot_reach_each_other_the_later_one_is_left_out() -> None:
    assert apart(at("b", "c", "d"), between("c", "d"), "b") == {"t-r2.g1": (("c", "d"),)}


def test_the_smaller_side_is_left_out() -> None:
    assert set(apart(at("b", "c", "d", "e"), between("c", "de"), "b")) == {"t-r1.g1"}
    assert set(apart(at("c", "b", "d", "e", "f"), between("cd", "ef"), "b")) == {"t-r3.g1", "t-r4.g1"}


def test_the_lighthouses_own_node_stays_among_equals() -> None:
    assert set(apart(at("a", "b"), between("a", "b"), "b")) == {"t-r0.g1"}


def test_replicas_of_one_node_are_one_side() -> None:
    assert set(apart(at("c", "d", "d"), between("c", "d"), "b")) == {"t-r0.g1"}


def test_who_has_the_newest_weights_stays_even_if_it_is_alone() -> None:
    """Two that begin anew reach each other, and not the one with a thousand steps: it goes on alone."""
    standings = [*at("b", step=1000), FailedMember("t-r1.g2", "c", 0), FailedMember("t-r2.g2", "d", 0)]
    assert set(apart(standings, between("b", "cd"), "a")) == {"t-r1.g2", "t-r2.g2"}


def test_nobody_is_left_out_for_a_link_to_one_that_is_left_out_too() -> None:
    """x reaches all but c, and c reaches nobody."""
    standings = [*at("a", "b", "c"), FailedMember("x", "x", 0)]
    assert set(apart(standings, between("c", "abx"), "a")) == {"t-r2.g1"}


def test_links_that_nobody_uses_cut_nobody_off() -> None:
    assert apart(at("b", "c"), between("c", "z"), "b") == {}
    assert apart([], between("c", "z"), "b") == {}


NODES = "abcdef"


@given(
    st.lists(st.tuples(st.sampled_from(NODES), st.integers(0, 2)), min_size=1, max_size=8),
    st.sets(st.sampled_from([(a, b) for a in NODES for b in NODES if a < b]), max_size=9),
)
def test_whoever_stays_reaches_all_others_and_has_the_newest_weights(
    places: list[tuple[str, int]], broken: set[tuple[str, str]]
) -> None:
    standings = [FailedMember(f"r{index}", node, step) for index, (node, step) in enumerate(places)]
    out = apart(standings, broken, "a")
    stay = [one for one in standings if one.door not in out]
    assert not any(link(one.node, other.node) in broken for one in stay for other in stay)
    assert max(one.step for one in stay) == max(one.step for one in standings)
    for one in standings:
        used = {link(one.node, other.node) for other in stay} & broken
        assert set(out.get(one.door, ())) == used, "left out for links that the others need, and only then"


def test_a_link_that_breaks_again_and_again_must_work_for_longer_each_time() -> None:
    assert [steady_s(times) for times in range(3)] == [STEADY_S, 2 * STEADY_S, 4 * STEADY_S]
    assert steady_s(10_000) == LONGEST_S


# -- in the quorum --------------------------------------------------------------------------------
def cut(state: QuorumState, name: str, *, out: bool = True) -> None:
    state.cut_off[f"door-{name}"] = CutOff((("c", "d"),), out)


def test_a_step_that_failed_without_a_death_is_one_of_all_members() -> None:
    state = trained("a", "b")
    again = tuple(member(name, commit_failures=1) for name in "ab")
    assert failed_together(state, again)
    assert not failed_together(state, again[:1]), "one of them has not asked"
    both = (member("a", step=1), member("b", step=1))
    assert not failed_together(state, both)
    assert not failed_together(state, (*both, member("c", commit_failures=1))), "not of that quorum"
    state.answered = {}
    assert not failed_together(state, again), "one of them has ended, and the others know why it failed"


def test_the_others_form_a_quorum_without_one_that_is_cut_off() -> None:
    state = trained("a", "b", "c")
    cut(state, "c")
    ask(state, 1.0, *(member(name, step=1, commit_failures=1) for name in "abc"))
    assert is_held(state, "door-c")
    formed = form(1.0, state, RULES)
    assert ids(formed.members) == ["a", "b"] and settle(state, formed.members) == 2
    assert state.parted == {"c": 1}, "what it made without them does not count"
    state.cut_off.clear()
    ask(state, 2.0, member("a", step=2), member("b", step=2))
    assert ids(form(2.0, state, RULES).members) == ["a", "b", "c"]


def test_one_whose_links_are_only_reported_stays() -> None:
    state = trained("a", "b", "c")
    cut(state, "c", out=False)
    ask(state, 1.0, *(member(name, step=1) for name in "abc"))
    assert not is_held(state, "door-c") and ids(form(1.0, state, RULES).members) == ["a", "b", "c"]


def test_one_that_is_cut_off_is_taken_back_when_the_others_are_dead_or_too_few() -> None:
    state = trained("a", "b", "c")
    cut(state, "c")
    assert not recalled(1.0, state, RULES)
    assert recalled(1.0, state, QuorumRules(3, min_replicas=3)) == "only 2 of at least 3 replicas are left"
    for name in "ab":
        del state.candidates[name]
    assert recalled(1.0, state, RULES) == "no other replica of the last quorum is alive"
