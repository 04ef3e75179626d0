"""Replicas of a torchft job on devices that fail or are drained: only those on the device are touched."""

from __future__ import annotations

from core_story import KILLED
from device_story import DeviceStory

from torchloom.core.devices.preview import preview
from torchloom.model.effects import StopWorkers
from torchloom.model.fleet import JobState
from torchloom.model.quorum import ReplicaSeat
from torchloom.model.transaction.messages import Kind


def two_replicas(gpus: int = 6, *, training: bool = True) -> DeviceStory:
    story = DeviceStory()
    story.gpu_node("a", gpus)
    for index, name in enumerate(("ft-0", "ft-1")):
        story.run(name, workers=2, replica=ReplicaSeat("ft", index, 2))
        if training:
            story.job(name).control.step = 5
    return story


def test_a_failed_device_replaces_its_replica_and_the_others_keep_their_processes() -> None:
    story = two_replicas()
    beside = [worker.ref for worker in story.job("ft-0").workers]
    effects = story.mark("fail", "GPU-a2", why="Xid 79")
    stopped = {ref.job for e in effects if isinstance(e, StopWorkers) for ref in e.workers}
    assert stopped == {"ft-1"}
    story.end_rest(KILLED, job="ft-1")
    assert story.state("ft-0") is JobState.RUNNING
    assert [worker.ref for worker in story.job("ft-0").workers] == beside
    assert story.job("ft-1").generation == 2 and story.job("ft-1").restarts == 0
    assert not story.job("ft-0").incidents


def test_a_drained_replica_needs_no_save_because_the_others_have_its_state() -> None:
    story = two_replicas()
    (said,) = preview(story.fleet, "GPU-a2", "drain")
    assert "takes its state from the other replicas" in said.outcome
    story.mark("drain", "GPU-a2")
    assert story.state("ft-1") is JobState.STOPPING and story.state("ft-0") is JobState.RUNNING
    kinds = {operation.kind for operation in story.job("ft-1").operations.values()}
    assert Kind.CHECKPOINT not in kinds, "nothing is saved"


def test_the_last_replica_that_trains_stays() -> None:
    story = two_replicas(training=False)
    story.mark("drain", "GPU-a2")
    leaving = story.job("ft-1").leaving
    assert story.state("ft-1") is JobState.RUNNING and leaving is not None and leaving.stays
    assert "too few of the other replicas train" in leaving.note
    story.job("ft-0").control.step = 3
    story.health("GPU-a5", "degraded")
    assert story.state("ft-1") is JobState.STOPPING, "it goes when they do"


def test_two_replicas_leave_one_after_the_other() -> None:
    story = two_replicas(gpus=8)
    story.mark("drain", "GPU-a0")
    story.mark("drain", "GPU-a2")
    states = [story.state(name) for name in ("ft-0", "ft-1")]
    assert states == [JobState.STOPPING, JobState.RUNNING]


def test_a_replica_leaves_for_another_node_if_its_own_has_no_room() -> None:
    story = two_replicas(gpus=4)
    story.gpu_node("b", 4)
    story.mark("drain", "GPU-a2")
    assert [story.state(name) for name in ("ft-0", "ft-1")] == [JobState.RUNNING, JobState.STOPPING]
