"""Going back to an earlier state: from any state of the job, at no cost to its restart budget."""

from __future__ import annotations

from core_story import OK, Story, limits, only

from torchloom.model.checkpoints import CheckpointPlace
from torchloom.model.effects import Effect, StartRendezvous, StartWorkers, StopWorkers
from torchloom.model.events import CheckpointStoreOpened, RestoreRequested, WorkerProgress
from torchloom.model.fleet import JobState


def restore(story: Story, step: int = 10, steps: int = 0) -> list[Effect]:
    ranks = range(len(story.job().workers)) if steps else range(0)
    progress = tuple(WorkerProgress(rank, steps, 0.1) for rank in ranks)
    return story.tell(RestoreRequested(job="j", step=step, by="eve", progress=progress))


def opened(story: Story, restored: str = "step-10.g1") -> None:
    place = CheckpointPlace("/data", "j")
    story.tell(CheckpointStoreOpened(node="a", ref=story.ref(), place=place, restored=restored))


def launched(story: Story) -> StartWorkers:
    """The start of the next generation, once its store is up."""
    return only(StartWorkers, story.store_up())


def test_an_ended_job_begins_again_from_the_state() -> None:
    story = Story(a=4)
    story.run()
    for rank in (0, 1):
        story.exit(rank, OK)
    assert story.state() is JobState.COMPLETED
    effects = restore(story)
    only(StartRendezvous, effects)
    assert story.state() is JobState.STARTING and story.job().ended_at_ns == 0
    start = launched(story)
    assert start.restore_step == 10 and start.generation == 2
    story.started()
    opened(story)
    assert story.job().restore is None and story.job().restarts == 0
    story.check_replay()


def test_a_running_job_stops_at_a_boundary_first() -> None:
    story = Story(a=4)
    story.run()
    stop = only(StopWorkers, restore(story, steps=40))
    assert stop.at_step is not None and stop.at_step > 40
    assert story.state() is JobState.STOPPING and "eve restores step 10" in story.job().reason
    story.end_rest(OK)
    assert story.state() is JobState.STARTING
    assert launched(story).restore_step == 10
    story.started()
    assert story.state() is JobState.RUNNING and story.job().restarts == 0 and story.job().incidents == []
    story.check_replay()


def test_a_generation_that_dies_before_it_has_restored_is_followed_by_one_that_does() -> None:
    story = Story(a=4)
    story.run()
    restore(story, steps=40)
    story.end_rest(OK)
    story.bring_up()
    opened(story, "")  # it found the state damaged
    story.exit(0, steps=30)
    story.end_rest()
    assert launched(story).restore_step == 10
    story.started()
    opened(story)
    story.exit(0, steps=30)
    story.end_rest()
    assert launched(story).restore_step is None, "from now on the newest state counts"
    story.check_replay()


def test_word_from_the_generation_that_was_left_does_not_count_as_restored() -> None:
    story = Story(a=4)
    story.run()
    restore(story, steps=40)
    opened(story, "")
    assert story.job().restore is not None


def test_a_failed_job_with_no_budget_left_can_be_revived() -> None:
    story = Story(a=4)
    story.run(restarts=limits(max_restarts=0))
    story.exit(0)
    story.end_rest()
    assert story.state() is JobState.FAILED
    old = story.incident()
    restore(story)
    story.bring_up()
    story.first_step()
    assert story.state() is JobState.RUNNING and old.timeline.spawned_ns == 0
    assert story.job().down_ns == 0
    story.check_replay()


def test_during_a_recovery_it_takes_the_place_of_the_plan() -> None:
    story = Story(a=4)
    story.run(restarts=limits(max_restarts=0))
    story.exit(0)
    assert story.state() is JobState.RECOVERING
    restore(story)
    assert story.incident().decision == "eve restores step 10"
    story.end_rest()
    assert story.state() is JobState.STARTING
    assert launched(story).restore_step == 10
    story.started()
    story.first_step()
    assert not story.incident().open
    story.check_replay()


def test_a_wait_is_cut_short_or_kept_with_the_state_in_mind() -> None:
    story = Story(a=4)
    story.run()
    story.exit(0)
    story.end_rest()
    assert story.state() is JobState.BACKOFF
    restore(story)
    assert story.state() is JobState.STARTING and not story.fleet.timers
    assert launched(story).restore_step == 10

    full = Story()
    full.submit()
    assert full.state() is JobState.WAITING
    restore(full)
    assert full.state() is JobState.WAITING
    full.join("a", 4)
    assert launched(full).restore_step == 10


def test_a_stop_afterwards_is_stronger_and_a_restore_after_a_stop_too() -> None:
    story = Story(a=4)
    story.run()
    restore(story, steps=40)
    story.stop()
    story.end_rest(OK)
    assert story.state() is JobState.STOPPED and "bob" in story.job().reason

    other = Story(a=4)
    other.run()
    other.stop()
    restore(other)
    other.end_rest(OK)
    assert other.state() is JobState.STARTING
    other.check_replay()


def test_a_stop_after_the_restored_generation_began_is_a_plain_stop() -> None:
    story = Story(a=4)
    story.run()
    restore(story, steps=40)
    story.end_rest(OK)
    story.bring_up()
    story.stop(kill=True)
    story.end_rest()
    assert story.state() is JobState.STOPPED and story.job().restore is None


def test_a_job_that_does_not_exist_is_none() -> None:
    story = Story(a=4)
    assert story.tell(RestoreRequested(job="x", step=1, by="eve")) == []
