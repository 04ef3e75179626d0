"""A restore and a stop on which the ranks of a running job agree, and what is done where they cannot."""

from __future__ import annotations

import json

import pytest
from core_story import OK, kinds, only
from steering_story import running

from torchloom.core.steering.stop import TRAINER_ENDS_S
from torchloom.model.checkpoints import CheckpointPlace, SavedCheckpoint
from torchloom.model.effects import StartWorkers, StopWorkers
from torchloom.model.events import (
    ChangeCancelled,
    CheckpointSaved,
    CheckpointStoreOpened,
    RestoreRequested,
    WorkerProgress,
)
from torchloom.model.fleet import JobState
from torchloom.model.timers import TimerKind
from torchloom.model.transaction.messages import Kind, Said


def restored(**more: object) -> RestoreRequested:
    progress = tuple(WorkerProgress(rank, 100, 0.1) for rank in range(2))
    return RestoreRequested(job="j", step=60, by="bob", progress=progress, **more)  # type: ignore[arg-type]


def test_a_restore_goes_by_the_ranks_if_they_can() -> None:
    story = running()
    story.ask({"lr": 1.0}, "early")
    story.carry(step=40, offset=0)
    story.ask({"lr": 2.0}, "late")
    story.carry(step=90, offset=0)
    story.tell(restored(operation="back", config="revert", checkpoint="step-60.g1"))
    assert story.mail().proposal.two_phase and story.mail().proposal.values["step"] == 60
    story.carry(step=100, offset=-40)
    assert story.record("back").state == "applied" and story.state() is JobState.RUNNING
    assert [e.version for e in story.job().schedule] == [1], "what came later was given up"
    story.check_replay()


def test_what_is_saved_after_going_back_is_the_newest_of_the_branch() -> None:
    story = running()
    place, ref = CheckpointPlace("/data", "j"), story.ref()
    story.tell(CheckpointStoreOpened(node="a", ref=ref, place=place))

    def saved(step: int) -> int:
        name = f"step-{step}.g1"
        story.tell(CheckpointSaved(node="a", ref=ref, saved=SavedCheckpoint(name=name, step=step)))
        known = story.job().checkpoints
        assert known is not None and known.saved is not None
        return known.saved.step

    assert (saved(60), saved(90)) == (60, 90)
    story.tell(restored(operation="back", config="revert", checkpoint="step-60.g1"))
    story.carry(step=100, offset=-40)
    known = story.job().checkpoints
    assert known is not None and known.saved is not None and known.saved.name == "step-60.g1"
    assert saved(70) == 70
    story.check_replay()


def test_a_restore_that_ranks_refuse_goes_by_a_restart() -> None:
    story = running()
    story.ask({"lr": 2.0}, "late")
    story.carry(step=90, offset=0)
    story.tell(restored(operation="back", config="keep", checkpoint="step-60.g1"))
    story.answer(Said.REFUSED, (0,), why="this script has no loom.Checkpoint")
    assert story.record("back").state == "not applied" and "by a restart" in story.record("back").reason
    assert story.state() is JobState.STOPPING
    story.end_rest(OK)
    story.store_up()
    start = story.open(StartWorkers)[-1]
    assert start.restore_step == 60
    assert json.loads(start.schedule) == [{"version": 1, "step": 61, "values": {"lr": 2.0}}], "kept"
    story.check_replay()


def test_a_restore_that_was_called_off_restarts_nothing() -> None:
    story = running()
    story.tell(restored(operation="back", checkpoint="step-60.g1"))
    story.tell(ChangeCancelled(job="j", operation="back", by="ann"))
    assert story.record("back").reason == "cancelled by ann" and story.state() is JobState.RUNNING


def test_a_stop_is_agreed_on_by_the_ranks() -> None:
    story = running()
    story.stop(steps=100, hears=True)
    assert story.state() is JobState.STOPPING and story.mail().proposal.kind is Kind.STOP
    assert not story.open(StopWorkers)
    story.carry(step=100)
    story.exit(0, OK)
    effects = story.exit(1, OK)
    assert story.state() is JobState.STOPPED and kinds(effects) == ["StopRendezvous"]
    (record,) = story.job().operations.values()
    assert record.state == "applied" and record.by == "bob" and not story.fleet.timers
    story.check_replay()


def test_a_trainer_that_ends_in_its_own_way_has_time_to_save() -> None:
    """Ranks of a framework's trainer agree on the boundary, and end behind it: after they have saved."""
    story = running()
    place = CheckpointPlace("/out", "j", framework="transformers", index="/out/j.trainer.json")
    story.tell(CheckpointStoreOpened(node="a", ref=story.ref(), place=place))
    story.stop(steps=100, step_s=0.1, hears=True)
    story.carry(step=100)
    (timer,) = story.fleet.timers.values()
    left_s = (timer.at_ns - story.now_ns) / 1e9
    assert timer.kind is TimerKind.STOP_BOUNDARY and left_s == pytest.approx(TRAINER_ENDS_S, abs=5)
    assert not story.open(StopWorkers)
    assert len(only(StopWorkers, story.fire()).workers) == 2, "one that never ends is ended"
    story.end_rest()
    assert story.state() is JobState.STOPPED and not story.fleet.timers
    story.check_replay()


def test_a_script_that_handles_sigterm_has_its_grace_to_save() -> None:
    story = running()
    story.stop(steps=100, step_s=0.01, hears=True, grace_s=40.0)
    story.carry(step=100)
    (timer,) = story.fleet.timers.values()
    left_s = (timer.at_ns - story.now_ns) / 1e9
    assert timer.kind is TimerKind.STOP_BOUNDARY and left_s == pytest.approx(40.0, abs=5)
    assert len(only(StopWorkers, story.fire()).workers) == 2, "then by signals"


def test_a_stop_that_ranks_cannot_agree_on_goes_by_signals_at_once() -> None:
    story = running()
    story.stop(steps=100, hears=True, grace_s=3.0)
    effects = story.answer(Said.REFUSED, (1,), why="the job's store does not answer")
    assert only(StopWorkers, effects).grace_s == 3.0
    story.end_rest()
    assert story.state() is JobState.STOPPED and not story.fleet.timers
    story.check_replay()


def test_a_stop_that_nobody_answers_goes_by_signals_after_the_limit() -> None:
    story = running()
    story.stop(steps=100, step_s=0.1, hears=True)
    timers = sorted(t.id for t in story.fleet.timers.values())
    assert timers == ["steer/j", "stop-boundary/j/1"]
    stop = only(StopWorkers, story.fire())
    assert stop.grace_s == 10.0 and len(stop.workers) == 2
    story.end_rest()
    assert story.state() is JobState.STOPPED and not story.fleet.timers
    story.check_replay()


def test_a_stop_makes_other_changes_step_back() -> None:
    story = running()
    story.ask({"lr": 1.0}, "lr")
    story.stop(steps=100, hears=True)
    assert story.record("lr").reason == "the job is to stop" and story.mail().proposal.kind is Kind.STOP


def test_a_kill_does_not_wait_for_an_agreement() -> None:
    story = running()
    story.stop(steps=100, hears=True)
    assert only(StopWorkers, story.stop(kill=True)).grace_s == 0.0
    story.end_rest()
    assert story.state() is JobState.STOPPED and not story.fleet.timers
    (record,) = story.job().operations.values()
    assert record.ended
