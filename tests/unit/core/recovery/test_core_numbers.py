"""Numbers shown to people: goodput, recovery time, time to the end."""

from __future__ import annotations

import pytest
from core_story import KILLED, OK, S, Story
from finding_story import hang, made

from torchloom.core.recovery.incidents import goodput, recovery_s
from torchloom.model.events import FindingEnded, StopRequested
from torchloom.model.fleet import JobState


def test_goodput_of_a_job_that_never_failed_is_one() -> None:
    story = Story(a=8)
    assert story.submit() and goodput(story.fleet, story.job(), story.now_ns + S) == 1.0
    story.bring_up()
    assert goodput(story.fleet, story.job(), story.now_ns + 100 * S) == 1.0


def test_goodput_is_unknown_before_the_start() -> None:
    story = Story()
    story.submit()
    assert goodput(story.fleet, story.job(), story.now_ns) is None


def test_goodput_counts_the_time_from_fault_to_first_step() -> None:
    story = Story(a=8)
    story.run(workers=1)
    begun = story.job().started_at_ns
    story.now_ns = begun + 90 * S
    story.exit(0, KILLED, steps=50)
    at_fault = story.incident().timeline.fault_ns
    story.bring_up()
    assert goodput(story.fleet, story.job(), at_fault + 10 * S) == pytest.approx(0.9, abs=0.001)
    story.now_ns = at_fault + 10 * S
    story.first_step()
    assert recovery_s(story.incident()) == 10.0
    assert goodput(story.fleet, story.job(), begun + 200 * S) == pytest.approx(0.95, abs=0.001)


def hanging(lasting_s: float, **more: object) -> Story:
    """A job that has trained for 100 s; since `lasting_s` of them a rank hangs, and nobody may act."""
    story = Story(a=8)
    story.run(workers=2)
    for rank in (0, 1):
        story.first_step(rank)
    story.now_ns = story.job().started_at_ns + 100 * S
    story.tell(made(hang(lasting_s=lasting_s, **more)), after_s=0)
    assert story.state() is JobState.RUNNING
    return story


def good(story: Story, after_s: float = 0.0) -> float:
    found = goodput(story.fleet, story.job(), story.now_ns + int(after_s * S))
    assert found is not None
    return found


def test_a_hang_counts_while_it_lasts_and_stays_counted_when_it_goes_on() -> None:
    story = hanging(20.0)
    assert good(story) == pytest.approx(0.8) and good(story, 100) == pytest.approx(0.4)
    (name,) = story.job().findings
    story.tell(FindingEnded(job="j", generation=1, key=name, lasted_s=120.0), after_s=100)
    assert good(story) == pytest.approx(0.4) and story.incident().goodput_after == pytest.approx(0.4)
    assert good(story, 200) == pytest.approx(0.7), "it trains since"
    story.check_replay()


def test_a_hang_that_somebody_ends_or_that_is_recovered_counts_once() -> None:
    story = hanging(20.0)
    story.tell(made(hang(lasting_s=30.0, certain=True, may_act=True, certainty="stopped")), after_s=10)
    assert story.state() is JobState.RECOVERING
    story.end_rest(KILLED)
    story.bring_up()
    story.now_ns += 10 * S
    until = story.now_ns
    story.first_step()
    assert story.job().down_ns == until - story.incident().timeline.fault_ns
    story = hanging(20.0)
    story.tell(StopRequested(job="j", by="ann", kill=True), after_s=0)
    story.end_rest(KILLED)
    assert story.job().ended and good(story, 1000) == pytest.approx(0.8, abs=0.01)


def test_slowness_is_not_down() -> None:
    assert good(hanging(20.0, kind="compute-slow")) == 1.0


def test_a_job_without_steps_that_completed_worked_since_it_was_started_again() -> None:
    story = Story(a=8)
    story.run(workers=1)
    begun = story.job().started_at_ns
    story.now_ns = begun + 70 * S
    story.exit(0, KILLED, ran_s=70.0)
    story.bring_up()
    story.now_ns += 100 * S
    story.exit(0, OK)
    assert goodput(story.fleet, story.job(), story.now_ns) == pytest.approx(1.0, abs=0.001)
    assert recovery_s(story.incident()) is None


def test_the_time_that_a_start_takes_is_no_lost_work() -> None:
    """One step of ten is lost, 100 s after the start and 10 s after the first step: that is 1 s."""
    story = Story(a=8)
    story.run(workers=1)
    story.now_ns += 90 * S
    story.first_step(training_step=0)
    story.now_ns += 10 * S - 1
    story.exit(0, KILLED, steps=10, training_step=10, ran_s=100.0)
    story.bring_up()
    story.first_step(training_step=10)
    assert story.fleet.incidents["j.1"].lost_steps == 1
    assert 0.5 * S < story.job().lost_ns < 1.5 * S
    story.check_replay()


def test_the_time_of_a_hang_is_counted_once() -> None:
    """It is down from the first sign on, and the steps before it are lost as well."""
    story = Story(a=8)
    story.run(workers=1)
    story.first_step()
    story.now_ns += 10 * S
    fault_ns = story.now_ns
    story.tell(made(hang(lasting_s=0.0, certain=True, may_act=True, certainty="stopped")), after_s=0)
    story.now_ns += 60 * S
    story.exit(0, KILLED, steps=10, ran_s=70.0)
    story.bring_up()
    story.first_step()
    assert story.incident().timeline.fault_ns == fault_ns
    assert 9 * S < story.job().lost_ns < 12 * S
    story.check_replay()
