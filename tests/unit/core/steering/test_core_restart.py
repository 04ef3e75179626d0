"""A job begins again when a person wants it: one that has ended, and one that runs."""

from __future__ import annotations

from core_story import FAILED, OK, Story, limits, only

from torchloom.core.config.box_codec import unpack_schedule
from torchloom.model.effects import StartWorkers, StopWorkers
from torchloom.model.events import RestartRequested
from torchloom.model.fleet import JobState


def ended(exit: object = OK, **spec: object) -> Story:
    story = Story(a=8)
    story.run(workers=2, **spec)
    for rank in range(2):
        story.exit(rank, exit, steps=100, training_step=100)  # type: ignore[arg-type]
    return story


def test_a_job_that_has_ended_begins_again() -> None:
    story = ended()
    assert story.state() is JobState.COMPLETED
    story.tell(RestartRequested(job="j", by="ann"))
    assert story.state() is JobState.STARTING and "restarted by ann" in story.job().reason
    story.bring_up()
    assert story.state() is JobState.RUNNING and story.job().generation == 2
    assert story.job().restarts == 0, "it costs nothing of the budget"
    story.check_replay()


def test_a_failed_job_has_its_budget_without_progress_again() -> None:
    story = Story(a=8)
    story.run(workers=1, restarts=limits(max_fruitless=1))
    story.exit(0, FAILED)
    story.fire()
    story.bring_up()
    story.exit(0, FAILED)
    assert story.state() is JobState.FAILED
    story.tell(RestartRequested(job="j", by="ann"))
    story.bring_up()
    story.exit(0, FAILED)
    assert story.state() is JobState.BACKOFF


def test_a_job_that_ended_by_its_last_step_gets_another_one() -> None:
    story = ended(max_steps=100)
    story.tell(RestartRequested(job="j", by="ann", max_steps=250))
    start = only(StartWorkers, story.store_up())
    assert start.max_steps == 250, "scripts read it as MAX_STEPS"
    newest = max(unpack_schedule(start.schedule.encode()), key=lambda entry: entry.version)
    assert newest.values == {"max_steps": 250} and newest.step == 0
    (record,) = story.job().operations.values()
    assert (record.state, record.by) == ("applied", "ann")
    story.check_replay()


def test_a_job_that_runs_is_ended_at_a_boundary_first() -> None:
    story = Story(a=8)
    story.run(workers=2)
    effects = story.tell(RestartRequested(job="j", by="ann"))
    assert story.state() is JobState.STOPPING and len(only(StopWorkers, effects).workers) == 2
    story.end_rest()
    assert story.state() is JobState.STARTING
    story.bring_up()
    assert story.state() is JobState.RUNNING and story.job().generation == 2
    story.check_replay()
