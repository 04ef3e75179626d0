"""Whether a job is tried again and when: budgets, backoff, progress."""

from __future__ import annotations

import pytest
from core_story import FAILED, KILLED, START_NS, Story, limits, lost_peer

from torchloom.core.recovery.budget import backoff_s, made_progress
from torchloom.model.effects import StartRendezvous, StopRendezvous
from torchloom.model.events import WorkerExited
from torchloom.model.fleet import JobState


def test_backoff_doubles_from_its_base_up_to_its_cap() -> None:
    rules = limits(backoff_base_s=0.5, backoff_cap_s=30.0, jitter=0.0)
    assert [backoff_s(rules, n, 0.3) for n in range(9)] == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff_s(rules, 5000, 0.3) == 30


def test_jitter_spreads_the_delay_around_its_value() -> None:
    rules = limits(backoff_base_s=4.0, jitter=0.25)
    assert backoff_s(rules, 1, 0.0) == 3.0
    assert backoff_s(rules, 1, 0.5) == 4.0
    assert 4.99 < backoff_s(rules, 1, 0.999) < 5.0
    assert backoff_s(limits(jitter=3.0), 1, 0.0) == 0.0, "never negative"


@pytest.mark.parametrize(
    ("steps", "ran_s", "progress"), [(19, 59.9, False), (20, 0.0, True), (0, 60.0, True)]
)
def test_progress_is_steps_or_time(steps: int, ran_s: float, progress: bool) -> None:
    assert made_progress(limits(), steps, ran_s) is progress


def test_at_once_after_progress() -> None:
    story = Story(a=8)
    story.run(workers=1)
    story.exit(0, KILLED, steps=20)
    assert story.state() is JobState.STARTING and not story.fleet.timers
    assert "restart 1 of at most 10, at once because the job had made progress" in story.incident().decision


def test_after_a_delay_without_progress() -> None:
    story = Story(a=8)
    story.run(workers=1)
    effects = story.exit(0, KILLED, steps=19)
    assert [type(e) for e in effects] == [StopRendezvous], "no store waits through a backoff"
    assert story.state() is JobState.BACKOFF
    (timer,) = story.fleet.timers.values()
    delay_s = (timer.at_ns - story.now_ns) / 1e9
    assert 0.375 <= delay_s <= 0.625 and f"restart 1 of at most 3 without progress, in {delay_s:.1f} s" in (
        story.job().reason
    )
    effects = story.fire()
    assert [type(e) for e in effects] == [StartRendezvous]
    assert story.state() is JobState.STARTING and "the wait is over" in story.job().reason
    assert not story.fleet.timers


def test_delays_grow_without_progress_and_begin_anew_after_it() -> None:
    story = Story(a=8)
    story.run(workers=1, restarts=limits(jitter=0.0))
    delays = []
    for steps in (0, 0, 0, 50, 0):
        story.exit(0, KILLED, steps=steps)
        timers = list(story.fleet.timers.values())
        delays.append((timers[0].at_ns - story.now_ns) / 1e9 if timers else 0.0)
        if timers:
            story.fire()
        story.bring_up()
    assert delays == [0.5, 1.0, 2.0, 0.0, 0.5]
    story.check_replay()


def test_fruitless_restarts_end_in_failed_with_the_reason() -> None:
    story = Story(a=8)
    story.run(workers=2, restarts=limits(max_fruitless=3))
    for _ in range(3):
        story.exit(0, FAILED)
        story.end_rest()
        story.fire()
        story.bring_up()
    story.exit(0, FAILED)
    story.end_rest()
    job = story.job()
    assert story.state() is JobState.FAILED and job.restarts == 3 and job.generation == 4
    assert "rank 0 on a exited with code 1" in job.reason
    assert "3 restarts in a row brought no progress (less than 20 steps and 60 s)" in job.reason
    assert "--max-fruitless 3 allows no more" in job.reason, "which limit it was"
    story.done(*story.fleet.outbox.values())
    assert not story.fleet.outbox and not story.fleet.timers
    story.check_replay()


def test_the_budget_of_the_job() -> None:
    story = Story(a=8)
    story.run(workers=1, restarts=limits(max_restarts=2))
    for _ in range(2):
        story.exit(0, KILLED, steps=100)
        story.bring_up()
    story.exit(0, KILLED, steps=100)
    assert (
        story.state() is JobState.FAILED
        and "the budget of 2 restarts (--max-restarts) is used up" in story.job().reason
    )


def test_the_budget_of_one_worker() -> None:
    story = Story(a=8)
    story.run(workers=2, restarts=limits(max_restarts_per_worker=1))
    for rank in (0, 1):
        story.exit(rank, KILLED, steps=100)
        story.end_rest()
        story.bring_up()
    assert story.job().restarts_by_rank == {0: 1, 1: 1}
    story.exit(1, KILLED, steps=100)
    story.end_rest()
    assert story.state() is JobState.FAILED
    assert "rank 1 has caused 1 restarts, its budget is 1" in story.job().reason


def test_the_budget_is_that_of_the_culprit_not_of_who_was_seen_first() -> None:
    story = Story(a=8)
    story.run(workers=2, restarts=limits(max_restarts_per_worker=1))
    for _ in range(2):
        story.exit(0, FAILED, end=lost_peer(), steps=100)
        story.exit(1, KILLED, steps=100, at_s=0.1)
        story.bring_up()
    assert story.state() is JobState.FAILED and story.job().restarts_by_rank == {1: 1}
    assert story.incident().decision == "rank 1 has caused 1 restarts, its budget is 1"


def test_progress_told_only_by_a_later_exit_counts() -> None:
    story = Story(a=8)
    story.run(workers=2)
    story.exit(0, KILLED, steps=0)
    assert "without progress" in story.job().reason
    story.exit(1, KILLED, steps=500)
    assert story.state() is JobState.STARTING and "made progress" in story.incident().decision


def test_jitter_is_random_between_events_and_the_same_on_replay() -> None:
    due = set()
    for name in ("one", "two", "three", "four"):
        story = Story(a=8)
        story.run(workers=1)
        exited = WorkerExited(node="a", ref=story.ref(0), exit=KILLED, at_ns=START_NS)
        story.tell(exited, event_id=f"exit-{name}")
        due.update(timer.at_ns for timer in story.fleet.timers.values())
        story.check_replay()
    assert len(due) == 4
