"""A device is drained: its jobs are saved and leave in good order; the others stay."""

from __future__ import annotations

from core_story import KILLED
from device_story import DeviceStory

from torchloom.core.devices.preview import preview
from torchloom.model.fleet import JobState


def test_a_job_that_cannot_save_stays_and_says_why() -> None:
    story = DeviceStory()
    story.gpu_node("a", 4)
    story.run("j", workers=2)
    story.mark("drain", "GPU-a0", why="fan")
    leaving = story.job().leaving
    assert leaving is not None and leaving.stays and "--force" in leaving.note
    assert story.state() is JobState.RUNNING and story.fleet.nodes["a"].room == 1


def test_force_moves_it_without_a_save_and_counts_no_restart() -> None:
    story = DeviceStory()
    story.gpu_node("a", 4)
    story.run("j", workers=2)
    story.run("k", workers=1)
    story.mark("drain", "GPU-a0", force=True)
    assert story.state() is JobState.STOPPING
    assert story.state("k") is JobState.RUNNING
    story.end_rest(KILLED)
    story.bring_up()
    assert story.devices() == ["GPU-a1", "GPU-a3"]
    assert story.job().restarts == 0 and story.job().leaving is None
    story.check_map()
    story.check_replay()


def test_the_last_device_is_not_left() -> None:
    story = DeviceStory()
    story.gpu_node("a", 2)
    story.run("j", workers=2)
    story.mark("drain", "GPU-a0", force=True)
    leaving = story.job().leaving
    assert leaving is not None and leaving.stays
    assert "other devices have room for 1 of its 2 workers" in leaving.note
    assert story.state() is JobState.RUNNING


def test_returning_a_device_cancels_its_drain() -> None:
    story = DeviceStory()
    story.gpu_node("a", 2)
    story.run("j", workers=2)
    story.mark("drain", "GPU-a0")
    story.mark("return", "GPU-a0")
    assert story.job().leaving is None and story.fleet.nodes["a"].room == 0
    assert story.state() is JobState.RUNNING
    story.check_replay()


def test_a_device_that_fails_during_its_drain_is_replaced_at_once() -> None:
    story = DeviceStory()
    story.gpu_node("a", 3)
    story.run("j", workers=2)
    story.mark("drain", "GPU-a0")
    story.mark("fail", "GPU-a0", why="Xid 79")
    assert story.state() is JobState.RECOVERING
    story.end_rest(KILLED)
    story.bring_up()
    assert story.devices() == ["GPU-a1", "GPU-a2"]
    story.mark("drain", "GPU-a0")
    out = story.fleet.devices["GPU-a0"].out
    assert out is not None and out.how == "failed", "a drain does not weaken it"
    story.check_replay()


def test_two_drains_and_a_drain_of_the_node_at_once() -> None:
    from torchloom.model.events import NodeDrained

    story = DeviceStory()
    story.gpu_node("a", 3)
    story.gpu_node("b", 2)
    story.run("j", workers=2)
    story.mark("drain", "GPU-a0")
    story.mark("drain", "GPU-a0", why="again")
    story.tell(NodeDrained(node="a", by="bob", move=True, force=True))
    assert story.state() is JobState.STOPPING
    story.end_rest(KILLED)
    story.bring_up()
    assert [worker.node for worker in story.job().workers] == ["b", "b"]
    story.check_replay()


def test_a_preview_names_the_jobs_and_changes_nothing() -> None:
    story = DeviceStory()
    story.gpu_node("a", 3)
    story.run("j", workers=2)
    story.run("k", workers=1)
    (one,) = preview(story.fleet, "GPU-a1", "fail")
    assert (one.job, one.ranks) == ("j", (1,)) and "it waits" in one.outcome
    (two,) = preview(story.fleet, "GPU-a2", "drain")
    assert two.job == "k" and two.outcome.startswith("it stays")
    assert preview(story.fleet, "GPU-a2", "return")[0].outcome == "nothing changes"
    assert story.fleet.devices["GPU-a1"].out is None
