"""What may happen to a device while it is drained: it fails, disappears, returns, and its node leaves too."""

from __future__ import annotations

import pytest
from core_story import KILLED
from device_story import DeviceStory

from torchloom.core.devices.users import _cores
from torchloom.model.devices import DevicePolicy, HealthReport
from torchloom.model.events import DeviceHealthReported, NodeDrained, NodeGone, NodeUnreachable
from torchloom.model.fleet import JobState


def draining(workers: int = 2, gpus: int = 4) -> DeviceStory:
    """A job that cannot save stays on the device that is drained."""
    story = DeviceStory()
    story.gpu_node("a", gpus)
    story.run("j", workers=workers)
    story.mark("drain", "GPU-a0", why="fan")
    assert story.job().leaving is not None and story.state() is JobState.RUNNING
    return story


def how(story: DeviceStory, device: str = "GPU-a0") -> str:
    out = story.fleet.devices[device].out
    return out.how if out is not None else ""


def test_health_that_fails_during_a_drain_replaces_the_workers_at_once() -> None:
    story = draining()
    story.health("GPU-a0", "failed", "no longer listed")
    assert story.state() is JobState.RECOVERING and how(story) == "failed"
    story.end_rest(KILLED)
    story.bring_up()
    assert "GPU-a0" not in story.devices() and story.job().leaving is None
    assert story.job().restarts == 0
    story.check_map()
    story.check_replay()


def test_health_that_fails_without_room_elsewhere_makes_the_job_wait() -> None:
    story = draining(workers=2, gpus=2)
    story.health("GPU-a0", "failed", "no longer listed")
    story.end_rest(KILLED)
    assert story.state() is JobState.WAITING and "GPU-a0" in story.job().reason
    story.mark("return", "GPU-a0")
    story.bring_up()
    assert story.state() is JobState.RUNNING
    story.check_map()
    story.check_replay()


@pytest.mark.parametrize("level", ["degraded", "failing"])
def test_health_that_is_only_worse_leaves_a_drain_as_it_is(level: str) -> None:
    story = draining()
    story.fleet.device_policy = DevicePolicy(rules={"degraded": "drain", "failing": "drain"})
    story.health("GPU-a0", level)  # type: ignore[arg-type]
    out = story.fleet.devices["GPU-a0"].out
    assert out is not None and (out.how, out.by, out.why) == ("drained", "ann", "fan")
    assert story.fleet.device_acts == []


def test_a_device_that_is_pulled_after_its_drain_stays_drained_by_whom_it_was() -> None:
    story = DeviceStory()
    story.gpu_node("a", 3)
    story.mark("drain", "GPU-a0", why="repair")
    story.health("GPU-a0", "failed", "no longer listed")
    out = story.fleet.devices["GPU-a0"].out
    assert out is not None and (out.how, out.by, out.why) == ("drained", "ann", "repair")
    assert story.fleet.device_acts == [], "nothing was done, so nothing counts against the budget"


def test_a_device_that_is_no_longer_listed_during_its_drain_gets_nobody_and_can_be_returned() -> None:
    story = draining()
    story.gpu_node("a", 4, without=("GPU-a0",), live=(story.ref(0), story.ref(1)))
    assert how(story) == "drained" and story.state() is JobState.RUNNING
    story.check_map()
    story.mark("drain", "GPU-a0", force=True)
    story.end_rest(KILLED)
    story.bring_up()
    assert "GPU-a0" not in story.devices()
    story.gpu_node("a", 4, live=(story.ref(0), story.ref(1)))
    assert how(story) == "drained"
    story.mark("return", "GPU-a0")
    assert how(story) == ""
    story.check_map()
    story.check_replay()


def test_its_node_is_lost_during_the_drain() -> None:
    story = draining(gpus=3)
    story.gpu_node("b", 2)
    story.tell(NodeUnreachable(node="a", silent_s=60.0))
    story.tell(NodeGone(node="a", by="ann"))
    story.fire()
    story.bring_up()
    assert [worker.node for worker in story.job().workers] == ["b", "b"] and story.job().leaving is None
    story.gpu_node("a", 3)
    assert how(story) == "drained", "it is still out of use when its node is back"
    story.check_map()
    story.check_replay()


def test_drains_of_a_device_and_its_node_are_cancelled_one_by_one() -> None:
    story = draining(gpus=2)
    story.tell(NodeDrained(node="a", by="bob", move=True))
    story.mark("return", "GPU-a0")
    assert story.job().leaving is not None, "the node still drains"
    story.tell(NodeDrained(node="a", by="bob", open=True))
    assert story.job().leaving is None and story.state() is JobState.RUNNING
    story.tell(NodeDrained(node="a", by="bob", move=True))
    story.mark("drain", "GPU-a0", why="fan")
    story.tell(NodeDrained(node="a", by="bob", open=True))
    assert story.job().leaving is not None, "the device still drains"
    story.mark("return", "GPU-a0")
    assert story.job().leaving is None and story.state() is JobState.RUNNING
    story.check_map()
    story.check_replay()


def test_a_second_drain_with_force_moves_the_job_that_stayed() -> None:
    story = draining()
    story.mark("drain", "GPU-a0", force=True)
    assert story.state() is JobState.STOPPING
    story.mark("drain", "GPU-a0", force=True)
    story.end_rest(KILLED)
    story.bring_up()
    assert story.devices() == ["GPU-a1", "GPU-a2"] and story.job().generation == 2
    story.check_replay()


def test_two_devices_of_one_job_drain_at_once() -> None:
    story = draining(gpus=4)
    story.mark("drain", "GPU-a1", force=True)
    story.end_rest(KILLED)
    story.bring_up()
    assert story.devices() == ["GPU-a2", "GPU-a3"] and story.job().leaving is None
    story.check_map()
    story.check_replay()


def test_a_worker_dies_while_its_device_drains_and_comes_back_elsewhere() -> None:
    story = draining()
    story.exit(0, KILLED)
    story.end_rest(KILLED)
    story.fire()
    story.bring_up()
    assert "GPU-a0" not in story.devices() and story.job().leaving is None
    story.check_map()
    story.check_replay()


def test_a_node_speaks_for_its_own_devices_only() -> None:
    story = DeviceStory()
    story.gpu_node("a", 2)
    story.gpu_node("b", 2)
    story.run("j", workers=1)
    (device,) = story.devices()
    foreign = "b" if story.fleet.devices[device].node == "a" else "a"
    report = HealthReport(device=device, level="failed", why="forged", source="nvml")
    story.tell(DeviceHealthReported(node=foreign, health=(report,)))
    assert story.state() is JobState.RUNNING and story.fleet.devices[device].health == {}
    story.check_replay()


@pytest.mark.parametrize("text", ["0-99999999999", "9" * 5000, f"0-{'9' * 5000}", "7-3", "²", "-1", "0-3-5"])
def test_an_id_that_names_absurd_cores_costs_nothing(text: str) -> None:
    assert len(_cores(f"cpu-a-{text}", "a")) <= 4096
