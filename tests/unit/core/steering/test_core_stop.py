"""A person stops a job, in every state it can be in."""

from __future__ import annotations

import pytest
from core_story import KILLED, NEVER_STARTED, OK, Story, kinds, only

from torchloom.core.steering.stop import boundary
from torchloom.model.effects import StartRendezvous, StartWorkers, StopRendezvous, StopWorkers
from torchloom.model.events import StopRequested, WorkerProgress
from torchloom.model.fleet import JobState
from torchloom.model.worker import Exit


def test_a_training_job_ends_at_a_step_boundary() -> None:
    story = Story(a=8)
    story.run(workers=2, stop_grace_s=7.0)
    stop = only(StopWorkers, story.stop(steps=100, step_s=0.1))
    assert stop.at_step == 105, "100 done, 2 + ceil(0.25 / 0.1) ahead"
    assert stop.boundary_wait_s == pytest.approx(2.0 + 4 * 5 * 0.1)
    assert stop.grace_s == 7.0 and not stop.kill_in_collective and stop.reason == "stopped by bob"
    assert story.state() is JobState.STOPPING
    story.exit(0, OK)
    assert story.state() is JobState.STOPPING
    effects = story.exit(1, OK)
    assert story.state() is JobState.STOPPED and kinds(effects) == ["StopRendezvous"]
    assert story.job().reason == "stopped by bob" and not story.fleet.incidents
    story.done(*story.fleet.outbox.values())
    assert not story.fleet.outbox
    story.check_replay()


def test_a_job_that_does_not_step_has_no_boundary() -> None:
    story = Story(a=8)
    story.run()
    stop = only(StopWorkers, story.stop())
    assert stop.at_step is None and stop.boundary_wait_s == 0.0 and stop.grace_s == 10.0


def test_the_grace_of_the_request_wins() -> None:
    story = Story(a=8)
    story.run()
    assert only(StopWorkers, story.stop(grace_s=1.5)).grace_s == 1.5


def test_a_signal_that_somebody_named_takes_the_place_of_sigterm() -> None:
    story = Story(a=8)
    story.run()
    stop = only(StopWorkers, story.stop(steps=100, signal="SIGUSR1", grace_s=60.0))
    assert (stop.signal, stop.grace_s, stop.at_step) == ("SIGUSR1", 60.0, None)


def test_kill_is_at_once() -> None:
    story = Story(a=8)
    story.run()
    stop = only(StopWorkers, story.stop(kill=True, steps=100))
    assert stop.at_step is None and stop.grace_s == 0.0 and stop.boundary_wait_s == 0.0
    assert story.job().reason == "stopped by bob (killed)"


def test_kill_after_a_graceful_stop_and_a_second_graceful_one_changes_nothing() -> None:
    story = Story(a=8)
    story.run()
    story.stop(steps=100)
    assert story.stop(steps=101) == []
    kill = only(StopWorkers, story.stop(kill=True))
    assert kill.grace_s == 0.0 and len(kill.workers) == 2
    story.end_rest(KILLED)
    assert story.state() is JobState.STOPPED and "killed" in story.job().reason
    assert not story.fleet.incidents, "a worker that dies of a stop is no incident"


def test_while_waiting() -> None:
    story = Story()
    story.submit()
    assert story.stop() == [] and story.state() is JobState.STOPPED
    assert story.join("a") == [], "a stopped job does not start when there is room"


def test_while_its_store_is_starting() -> None:
    story = Story(a=8)
    store = only(StartRendezvous, story.submit())
    stop = only(StopWorkers, story.stop())
    assert len(stop.workers) == 2 and story.state() is JobState.STOPPING
    assert story.store_up(store) == [], "no worker is started any more"
    story.end_rest(NEVER_STARTED)
    assert story.state() is JobState.STOPPED
    assert [e.store for e in story.open(StopRendezvous)] == [store.store]


def test_while_its_workers_are_starting() -> None:
    story = Story(a=8)
    story.submit()
    start = only(StartWorkers, story.store_up())
    story.stop()
    assert not story.open(StartWorkers), "the start is withdrawn"
    story.exit(0, NEVER_STARTED)
    story.started(start)
    assert story.state() is JobState.STOPPING, "rank 1 lives after all, and was told to stop"
    story.exit(1, KILLED)
    assert story.state() is JobState.STOPPED
    story.check_replay()


def test_while_recovering() -> None:
    story = Story(a=8)
    story.run()
    story.exit(0, KILLED, steps=50)
    stop = only(StopWorkers, story.stop(steps=50))
    assert stop.at_step is None, "a broken group reaches no boundary"
    effects = story.exit(1, KILLED)
    assert story.state() is JobState.STOPPED and kinds(effects) == ["StopRendezvous"]
    assert not story.incident().open and story.job().restarts == 0


def test_while_in_backoff() -> None:
    story = Story(a=8)
    story.run(workers=1)
    story.exit(0, KILLED)
    assert story.state() is JobState.BACKOFF
    story.stop()
    assert story.state() is JobState.STOPPED and not story.fleet.timers


@pytest.mark.parametrize("exit", [OK, KILLED])
def test_after_the_end_nothing_happens(exit: Exit) -> None:
    story = Story(a=8)
    story.run(workers=1)
    story.stop()
    story.exit(0, exit)
    ended = story.job().ended_at_ns
    assert story.stop(kill=True) == [] and story.job().ended_at_ns == ended


def test_an_unknown_job() -> None:
    story = Story(a=8)
    story.run(workers=1)
    assert story.tell(StopRequested(job="nobody", by="bob")) == []


def test_a_stop_that_an_agent_could_not_do_is_asked_for_again() -> None:
    story = Story(a=8)
    story.run()
    stop = only(StopWorkers, story.stop())
    assert story.failed(stop, "permission denied") == []
    assert story.state() is JobState.STOPPING and story.fleet.timers
    again = only(StopWorkers, story.fire())
    assert again.id != stop.id and again.grace_s == 0.0 and again.workers == stop.workers
    story.end_rest()
    assert story.state() is JobState.STOPPED and not story.fleet.timers
    story.check_replay()


def test_boundary_needs_every_rank_to_step() -> None:
    def at(*ranks: int, steps: int = 10, step_s: float = 1.0) -> int | None:
        return boundary([WorkerProgress(r, steps, step_s) for r in ranks], 2)[0]

    assert at(0, 1) == 13
    assert at(0) is None
    assert at(0, 0) is None
    assert at(0, 1, steps=0) is None
    assert at(0, 1, step_s=0.0) is None
    assert boundary([], 0) == (None, 0.0)


def test_boundary_lies_beyond_the_fastest_rank_and_the_wait_is_bounded() -> None:
    at_step, wait_s = boundary([WorkerProgress(0, 10, 100.0), WorkerProgress(1, 11, 100.0)], 2)
    assert at_step == 14 and wait_s == 60.0


def test_a_stop_that_failed_for_a_generation_that_is_gone_is_forgotten() -> None:
    story = Story(a=8)
    story.run()
    story.exit(0, KILLED, steps=50)
    story.failed(story.open(StopWorkers)[0])
    assert story.fleet.timers
    story.exit(1, KILLED)
    assert story.job().generation == 2 and not story.fleet.timers
