"""Numbers shown to people: goodput, recovery time, time to the end."""

from __future__ import annotations

import pytest
from core_story import KILLED, OK, S, Story

from torchloom.core.numbers import eta_s, goodput, recovery_s


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


def test_eta() -> None:
    assert eta_s(10, 110, 0.5) == 50.0
    assert eta_s(110, 110, 0.5) == 0.0
    assert eta_s(10, None, 0.5) is None
    assert eta_s(10, 110, 0.0) is None
    assert eta_s(120, 110, 0.5) is None
