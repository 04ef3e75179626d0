"""What workers tell about saving becomes knowledge and incidents, and never a restart."""

from __future__ import annotations

from core_story import FAILED, Story
from notice_story import apply_and_tell

from torchloom.model.checkpoints import CheckpointPlace, RejectedCheckpoint, SavedCheckpoint
from torchloom.model.effects import Effect, ReleaseMemory
from torchloom.model.events import (
    CheckpointFailed,
    CheckpointRejected,
    CheckpointSaved,
    CheckpointStoreOpened,
    RestoreDiffered,
    RestoreRequested,
)
from torchloom.model.fleet import Fleet, JobCheckpoints, JobState
from torchloom.model.worker import Exit
from torchloom.wire import codec

PLACE = CheckpointPlace("/data/checkpoints", "j")


class SavingStory(Story):
    """A running job whose rank 0 has opened its store."""

    def __init__(self) -> None:
        super().__init__(a=4)
        self.run()
        self.opened()

    def opened(self, restored: str = "") -> list[Effect]:
        where = "the store" if restored else ""
        return self.tell(
            CheckpointStoreOpened(
                node="a",
                ref=self.ref(),
                place=PLACE,
                restored=restored,
                restored_from=where,
                saved_step=int(restored[5:].partition(".")[0]) if restored else None,
            )
        )

    def saved(self, step: int, after_s: float = 0.01) -> list[Effect]:
        name = f"step-{step}.g{self.job().generation}"
        saved = SavedCheckpoint(name=name, step=step)
        return self.tell(CheckpointSaved(node="a", ref=self.ref(), saved=saved), after_s=after_s)

    def failed(self, step: int, rank: int = 0, why: str = "the disk is full") -> list[Effect]:  # type: ignore[override]
        return self.tell(CheckpointFailed(node="a", ref=self.ref(rank), step=step, why=why))

    def rejected(self, *names: str, used: str = "step-5.g1") -> list[Effect]:
        passed = tuple(RejectedCheckpoint(name, "a file was changed") for name in names)
        return self.tell(CheckpointRejected(node="a", ref=self.ref(), rejected=passed, used=used))

    @property
    def known(self) -> JobCheckpoints:
        known = self.job().checkpoints
        assert known is not None
        return known


def test_the_newest_saved_state_is_kept_with_the_job() -> None:
    story = SavingStory()
    assert story.known.place == PLACE and story.known.node == "a"
    assert story.saved(10) == story.saved(20) == []
    story.saved(15)  # told late
    assert story.known.saved is not None and story.known.saved.step == 20
    story.check_replay()


def test_what_an_older_generation_tells_is_dropped() -> None:
    story = SavingStory()
    old = story.ref()
    story.exit(0, steps=50)
    story.end_rest()
    story.bring_up()
    story.tell(CheckpointFailed(node="a", ref=old, step=9, why="no"))
    story.tell(CheckpointSaved(node="a", ref=old, saved=SavedCheckpoint(name="x", step=9)))
    assert story.known.saved is None and not story.known.failing
    assert len(story.job().incidents) == 1, "only that of the crash"


def test_what_was_saved_after_the_step_gone_back_to_counts_no_more() -> None:
    story = SavingStory()
    story.saved(30)
    story.failed(40)
    story.first_step(0)
    story.first_step(1)
    story.tell(RestoreRequested(job="j", step=20, by="bob"))
    story.end_rest()
    story.bring_up()
    story.opened(restored="step-20.g1")
    assert story.known.saved is not None and (story.known.saved.name, story.known.saved.step) == (
        "step-20.g1",
        20,
    )
    story.saved(25)
    assert story.known.saved.step == 25 and not story.known.failing
    story.check_replay()


def test_failures_in_a_row_are_one_incident_that_a_save_closes() -> None:
    story = SavingStory()
    story.saved(10)
    assert story.failed(20) == [], "nothing is restarted"
    story.failed(20, rank=1)
    story.failed(30)
    (incident,) = [story.fleet.incidents[i] for i in story.job().incidents]
    assert incident.kind == "checkpoint-failed" and incident.open and incident.culprit == 0
    assert "step 20" in incident.verdict and "the disk is full" in incident.verdict
    assert "step 10" in incident.decision
    assert story.state() is JobState.RUNNING and story.job().incident == ""
    story.saved(25)  # saved before the last failure and told after it
    assert incident.open and "step 25 is the newest state known to be saved" in incident.decision
    story.saved(40, after_s=7)
    assert not incident.open and "step 40" in incident.decision
    story.check_replay()


def test_what_the_last_generation_resumed_from_is_saved_whether_or_not_that_was_reported() -> None:
    """Step 40 was saved a moment before the crash and its worker could not report it any more."""
    story = SavingStory()
    story.saved(5)
    story.exit(0, FAILED)
    story.end_rest()
    if story.fleet.timers:
        story.fire()
    story.bring_up()
    story.opened(restored="step-40.g1")
    story.failed(45)
    assert "step 40 is the newest state known to be saved" in story.incident().decision
    story.check_replay()


def test_a_job_that_has_saved_nothing_says_so() -> None:
    story = SavingStory()
    story.failed(10)
    assert "no state is known to be saved" in story.incident().decision


def test_a_store_that_fails_again_soon_is_the_same_incident() -> None:
    story = SavingStory()
    for step in (10, 30, 50):
        story.failed(step)
        story.saved(step + 10)
    assert len(story.job().incidents) == 1 and not story.incident().open
    story.saved(70, after_s=1000)
    story.failed(80)
    assert len(story.job().incidents) == 2 and story.incident().open


def test_the_end_of_a_job_closes_the_incident_about_saving() -> None:
    story = SavingStory()
    story.failed(20)
    story.stop(kill=True)
    story.end_rest()
    assert story.state() is JobState.STOPPED and not story.incident().open


def test_a_damaged_state_is_told_once_with_what_was_used_instead() -> None:
    story = SavingStory()
    assert story.rejected("step-10.g1") == []
    incident = story.incident()
    assert incident.kind == "checkpoint-damaged" and not incident.open
    assert "step-10.g1" in incident.verdict and "was changed" in incident.verdict
    assert incident.decision == "step-5.g1 was used instead"
    story.rejected("step-10.g1")
    assert len(story.job().incidents) == 1
    story.rejected("step-10.g1", "step-5.g1", used="")
    assert len(story.job().incidents) == 2 and "step-10.g1" not in story.incident().verdict
    assert "no other" in story.incident().decision
    story.check_replay()


def test_an_object_that_differs_after_a_restore_is_one_incident_and_restarts_nothing() -> None:
    story = SavingStory()
    place = 'ema["shadow"]'

    def differs(rank: int, restored: str, *places: str) -> list[Effect]:
        ref = story.ref(rank)
        return story.tell(RestoreDiffered(node="a", ref=ref, restored=restored, places=places, more=2))

    assert differs(0, "step-10.g1", place) == []
    incident = story.incident()
    assert incident.kind == "restore-differs" and not incident.open
    assert incident.verdict == (
        f"rank 0 restored step-10.g1 and holds something else than was saved in {place} and 2 more places"
    )
    assert "training continues" in incident.decision and "load_state_dict" in incident.decision
    assert differs(1, "step-10.g1", place) == [] and len(story.job().incidents) == 1
    assert "(2 reports, the last by rank 1 after step-10.g1)" in incident.verdict
    assert differs(0, "step-20.g1", place, "other") == [] and len(story.job().incidents) == 2
    assert story.state() is JobState.RUNNING and story.job().restarts == 0 and not story.job().findings
    story.check_replay()


def test_a_damaged_record_is_no_checkpoint() -> None:
    story = SavingStory()
    story.rejected("generations/2.from")
    assert story.incident().verdict.startswith("the record generations/2.from cannot be used")


def test_checkpoints_that_were_deleted_are_an_incident_that_says_how_it_continues() -> None:
    story = SavingStory()
    story.saved(10)
    name = f"step-20.g{story.job().generation}"
    saved = SavedCheckpoint(name=name, step=20, lost="step-10.g1")
    assert story.tell(CheckpointSaved(node="a", ref=story.ref(), saved=saved)) == []
    incident = story.incident()
    assert incident.kind == "checkpoint-deleted" and not incident.open
    assert "deleted" in incident.verdict and "step-10.g1" in incident.verdict and name in incident.decision
    assert story.state() is JobState.RUNNING
    story.check_replay()


def test_a_generation_that_looks_for_what_was_saved_and_finds_nothing_says_so() -> None:
    story = SavingStory()
    story.saved(10)
    story.tell(
        CheckpointStoreOpened(node="a", ref=story.ref(), place=PLACE, restored="", restored_from="the store")
    )
    assert story.incident().kind == "checkpoint-deleted" and "began from nothing" in story.incident().decision
    assert story.known.saved is None, "a later incident does not promise to go back to it"


def test_a_script_that_never_looks_has_lost_nothing() -> None:
    story = SavingStory()
    story.saved(10)
    story.opened()
    assert not story.job().incidents


def test_every_event_can_be_told_in_words() -> None:
    story = SavingStory()
    story.opened("step-4.g1")
    story.saved(10)
    story.failed(20)
    story.rejected("step-10.g1")
    fleet = Fleet()
    told = [apply_and_tell(fleet, codec.decode_envelope(d), s, n) for d, s, n in story.stream]
    texts = [notice.text for notice in told if notice is not None]
    assert texts[-5:] == [
        "j found no checkpoint and begins from nothing",
        "j resumed from step-4.g1, from the store",
        "j saved step 10",
        "rank 0 of j could not save step 20",
        "j passed over damaged checkpoints: step-10.g1",
    ]
    assert told[-1] is not None and told[-1].incidents


def test_memory_is_given_back_when_the_job_has_ended_and_not_before() -> None:
    story = SavingStory()
    effects = story.exit(0, steps=50)
    effects += story.end_rest()
    assert not any(isinstance(effect, ReleaseMemory) for effect in effects), "the next generation needs it"
    story.bring_up()
    effects = [effect for rank in range(2) for effect in story.exit(rank, Exit(0, None, "spawner"))]
    released = [effect for effect in effects if isinstance(effect, ReleaseMemory)]
    assert [(e.node, e.job, e.generation) for e in released] == [("a", "j", 2)]
    assert story.done(*released) == [] and not any(
        isinstance(effect, ReleaseMemory) for effect in story.fleet.outbox.values()
    )
    story.check_replay()
