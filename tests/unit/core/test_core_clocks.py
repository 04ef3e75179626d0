"""Hosts whose clocks are wrong by any amount: who is blamed, and how long things took, stays the same."""

from __future__ import annotations

import pytest
from core_story import FAILED, KILLED, MS, START_NS, S, Story, raised
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from torchloom.core.stream_time import SET_NS, followed
from torchloom.model.events import FirstStep, ScriptFailed, WorkerExited
from torchloom.model.fleet import JobState
from torchloom.model.node import NodeClock
from torchloom.model.worker import EndRecord, Exit

HOUR = 3600.0


def skewed(ahead_s: float) -> Story:
    """Rank 0 runs on a, whose clock is right, and rank 1 on b."""
    story = Story(a=1, b=1)
    story.ahead_s = {"a": 0.0, "b": ahead_s}
    story.run(workers=1, nodes=2)
    assert [w.node for w in story.job().workers] == ["a", "b"]
    return story


def exit_on_b(story: Story, exit: Exit, ago_s: float, end: EndRecord | None = None) -> None:
    """Rank 1 ended so long ago; b tells it by its own clock."""
    wrong_ns = int(story.ahead_s["b"] * S)
    at_ns = story.now_ns - int(ago_s * S) + wrong_ns
    if end is not None:
        end = replace(end, at_ns=at_ns)
    story.tell(WorkerExited(node="b", ref=story.ref(1), exit=exit, at_ns=at_ns, steps=50, end=end))


@pytest.mark.parametrize("ahead_s", [-HOUR, -0.2, 0.0, HOUR])
def test_a_survivor_that_we_ended_is_not_blamed_for_the_clock_of_its_host(ahead_s: float) -> None:
    story = skewed(ahead_s)
    story.exit(0, FAILED, steps=50)
    assert story.state() is JobState.RECOVERING
    story.now_ns += S
    exit_on_b(story, KILLED, ago_s=0.1)
    incident = story.incident()
    assert incident.culprit == 0 and "rank 0 on a" in incident.verdict
    assert [r.after_stop for r in incident.exits] == [False, True]
    assert 0 < incident.timeline.fault_ns <= story.now_ns
    story.check_replay()


@pytest.mark.parametrize("ahead_s", [-HOUR, 0.0, HOUR])
def test_who_died_first_is_told_across_clocks(ahead_s: float) -> None:
    story = skewed(ahead_s)
    story.now_ns += 10 * S
    story.exit(0, FAILED, steps=50)
    exit_on_b(story, FAILED, ago_s=5.0, end=raised())  # told late, and the cause of it all
    incident = story.incident()
    assert incident.culprit == 1, incident.verdict
    assert abs(incident.timeline.fault_ns - (story.now_ns - 5 * S)) < 50 * MS


@pytest.mark.parametrize(("ahead_s", "ago_s", "believed"), [(-HOUR, 0.0, False), (HOUR, 5.0, True)])
def test_a_script_that_failed_after_the_decision_changes_nothing(
    ahead_s: float, ago_s: float, believed: bool
) -> None:
    story = skewed(ahead_s)
    story.now_ns += 10 * S
    story.exit(0, FAILED, steps=50)
    story.now_ns += S // 2
    at_ns = story.now_ns - int(ago_s * S) + int(ahead_s * S)
    end = replace(raised(at_ns=at_ns), certain=True)
    story.tell(ScriptFailed(node="b", ref=story.ref(1), end=end, at_ns=at_ns, steps=50))
    assert story.job().workers[1].script_failed is believed
    assert (story.incident().culprit == 1) is believed


@pytest.mark.parametrize("ahead_s", [-HOUR, HOUR])
def test_how_long_a_recovery_took_is_told_by_one_clock(ahead_s: float) -> None:
    story = skewed(ahead_s)
    exit_on_b(story, FAILED, ago_s=0.1, end=raised())
    story.end_rest()
    story.bring_up()
    at_ns = story.now_ns + int(ahead_s * S)
    story.tell(FirstStep(node="b", ref=story.ref(1), at_ns=at_ns))
    assert 0 < story.job().down_ns < S


def test_a_delayed_event_does_not_move_the_clock_and_one_that_was_set_is_followed() -> None:
    clock = followed(None, 2 * MS, START_NS)
    assert clock == NodeClock(2 * MS, START_NS)
    late = followed(clock, 3 * S, START_NS + S)
    assert late.behind_ns < 3 * MS, "it was under way for long"
    assert followed(late, MS, START_NS + 2 * S).behind_ns == MS
    assert followed(late, -3600 * S, START_NS + 2 * S).behind_ns == -3600 * S, "set forward"
    assert followed(late, 3600 * S, START_NS + 2 * S).behind_ns == 3600 * S, "set back"
    drifting = followed(late, 4 * S, START_NS + 86400 * S)
    assert drifting.behind_ns == 4 * S, "a day later it may well be seconds behind"


@given(
    true_ns=st.integers(-(10**15), 10**15),
    delays_ns=st.lists(st.integers(0, SET_NS - 1), min_size=1, max_size=30),
)
def test_it_is_never_thought_less_behind_than_it_is(true_ns: int, delays_ns: list[int]) -> None:
    """So nobody is thought to have died earlier than it did, whatever is delayed."""
    clock, now_ns = None, START_NS
    for delay_ns in delays_ns:
        now_ns += delay_ns + 1
        clock = followed(clock, true_ns + delay_ns, now_ns)
        assert true_ns <= clock.behind_ns <= true_ns + delay_ns
