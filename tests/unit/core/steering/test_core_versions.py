"""Versions of the settings count changes that took effect, and nothing else."""

from __future__ import annotations

from notice_story import apply_and_tell
from steering_story import running

from torchloom.api.views.jobs import config_version
from torchloom.api.views.steering import config_view, history, operation_view
from torchloom.core.steering.versions import changes_of, version_of_state, versions_of
from torchloom.model.events import StepReached
from torchloom.model.fleet import Fleet, Job
from torchloom.model.steering import KnownConfig
from torchloom.model.transaction.messages import Kind, Said
from torchloom.wire import codec


def test_pauses_saves_and_what_was_not_applied_use_up_no_version() -> None:
    story = running()
    story.ask({"lr": 0.1}, "first")
    story.carry(step=10, offset=0)
    for number, kind in enumerate((Kind.PAUSE, Kind.RESUME, Kind.CHECKPOINT)):
        story.ask({}, f"other {number}", kind=kind)
        story.carry(step=20 + 10 * number, offset=0)
        assert story.record(f"other {number}").state == "applied"
    story.ask({"nope": 1.0}, "bad")
    story.answer(Said.REFUSED, (0, 1), why="no such setting")
    assert story.record("bad").state == "not applied"
    story.ask({"lr": 0.2}, "second")
    story.carry(step=60, offset=0)

    job = story.job()
    assert [(one.version, one.state) for one in history(job)] == [
        (1, "applied"),
        (0, "not applied"),
        (2, "applied"),
    ]
    shown = {name: operation_view(job, story.record(name)) for name in ("first", "other 0", "bad", "second")}
    assert {name: view.version for name, view in shown.items()} == {
        "first": 1,
        "other 0": 0,
        "bad": 0,
        "second": 2,
    }
    assert [view.number for view in shown.values()] == [1, 2, 5, 6], "operations keep their own numbers"
    assert [entry.version for entry in config_view(job, KnownConfig(schedule=job.schedule), {}).schedule] == [
        1,
        2,
    ]
    assert config_version(job, {}) == 2
    saved_with_first, saved_with_second = 1, 6
    assert version_of_state(job, saved_with_first, 30) == 1
    assert version_of_state(job, saved_with_second, 100) == 2
    assert version_of_state(job, 0, 5) == 0
    story.check_replay()


def test_a_notice_names_the_version_of_a_change_and_the_number_of_other_operations() -> None:
    story = running()
    story.ask({}, "pause", kind=Kind.PAUSE)
    story.carry(step=10, offset=0)
    story.ask({}, "resume", kind=Kind.RESUME)
    story.carry(step=20, offset=0)
    story.ask({"lr": 3e-4}, "change")
    story.carry(step=30, offset=0)
    fleet, texts = Fleet(), []
    for data, seq, now_ns in story.stream:
        notice = apply_and_tell(fleet, codec.decode_envelope(data), seq, now_ns)
        texts.append(notice.text if notice is not None else "")
    assert any(text.startswith("set lr=0.0003 (version 1) of j") for text in texts)
    assert any(text.startswith("resume (operation 2) of j") for text in texts)


def test_a_plan_that_comes_after_a_newer_change_has_the_higher_version() -> None:
    story = running()
    story.ask({"momentum": 0.5}, "plan", at_step=1000, training_step=1000)
    story.ask({"lr": 2.0}, "now")
    story.carry(step=40, offset=0)
    assert versions_of(story.job()) == {2: 1}, "the plan has not taken effect"
    story.tell(StepReached(job="j", generation=1, step=990, step_s=0.05, offset=0))
    story.carry(step=990, offset=0)
    job = story.job()
    assert versions_of(job) == {2: 1, 1: 2}
    assert version_of_state(job, 2, 500) == 1, "saved before the plan took effect"
    assert version_of_state(job, 2, 2000) == 2, "its newest operation is 2, but the plan came after it"
    story.check_replay()


def test_a_snapshot_of_an_earlier_release_is_counted_from_what_it_holds() -> None:
    """It has no list of changes: neither the job, nor its operations name a version."""
    story = running()
    story.ask({}, "pause", kind=Kind.PAUSE)
    story.carry(step=10, offset=0)
    story.ask({}, "resume", kind=Kind.RESUME)
    story.carry(step=20, offset=0)
    story.ask({"lr": 0.1}, "old")
    story.carry(step=30, offset=0)
    stored = codec.decode_fleet(codec.encode(story.fleet))
    old: Job = stored.jobs["j"]
    old.changes = []
    for record in old.operations.values():
        record.config_version = 0
    assert changes_of(old) == [3] and [one.version for one in history(old)] == [1]
    story.fleet.jobs["j"] = old
    story.ask({"lr": 0.2}, "new")
    story.carry(step=40, offset=0)
    assert story.job().changes == [3, 4] and [one.version for one in history(story.job())] == [1, 2]
