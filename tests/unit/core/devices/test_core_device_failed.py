"""A device fails: exactly the jobs on it are replaced, without it, and nobody else is touched."""

from __future__ import annotations

from core_story import KILLED, only
from device_story import DeviceStory

from torchloom.model.effects import StartWorkers, StopWorkers
from torchloom.model.fleet import JobState
from torchloom.model.job import RestartLimits


def test_each_worker_gets_a_gpu_of_its_own_and_two_jobs_do_not_share() -> None:
    story = DeviceStory()
    story.gpu_node("a", 4)
    story.run("j", workers=2)
    story.run("k", workers=2)
    assert story.devices("j") == ["GPU-a0", "GPU-a1"]
    assert story.devices("k") == ["GPU-a2", "GPU-a3"]
    story.check_map()
    story.check_replay()


def test_workers_share_gpus_only_when_there_are_more_slots_than_gpus() -> None:
    story = DeviceStory()
    story.gpu_node("a", 2, slots=4)
    story.run("j", workers=4)
    assert story.devices() == ["GPU-a0", "GPU-a1", "GPU-a0", "GPU-a1"]
    assert story.on("GPU-a1") == [("j", 1), ("j", 3)]


def test_a_failed_device_ends_only_the_jobs_on_it_and_they_resume_on_others() -> None:
    story = DeviceStory()
    story.gpu_node("a", 5)
    story.run("j", workers=2)
    story.run("k", workers=2)
    beside = [worker.ref for worker in story.job("k").workers]
    stop = only(StopWorkers, story.mark("fail", "GPU-a1", why="Xid 79"))
    assert {ref.job for ref in stop.workers} == {"j"}
    incident = story.incident()
    assert incident.kind == "device-failed" and incident.culprit is None
    assert "GPU-a1 of a failed (Xid 79); it ran rank 1" in incident.verdict
    story.end_rest(KILLED)
    story.bring_up()
    assert story.state() is JobState.RUNNING
    assert story.devices("j") == ["GPU-a0", "GPU-a4"]
    assert story.job().restarts == 0, "the job is not at fault"
    assert [worker.ref for worker in story.job("k").workers] == beside
    story.first_step()
    assert not story.incident().open
    story.check_map()
    story.check_replay()


def test_the_agent_is_told_which_devices_are_out_of_use() -> None:
    story = DeviceStory()
    story.gpu_node("a", 3)
    story.mark("fail", "GPU-a0")
    story.submit("j", workers=2)
    story.store_up()
    start = story.open(StartWorkers)[-1]
    assert start.barred == ("GPU-a0",)
    assert [launch.device for launch in start.launches] == ["GPU-a1", "GPU-a2"]


def test_without_room_the_job_waits_with_the_reason_and_starts_when_the_device_returns() -> None:
    story = DeviceStory()
    story.gpu_node("a", 2)
    story.run("j", workers=2)
    story.mark("fail", "GPU-a0")
    story.end_rest(KILLED)
    assert story.state() is JobState.WAITING
    assert "GPU-a0 is out of use" in story.job().reason
    story.mark("return", "GPU-a0")
    story.bring_up()
    assert story.state() is JobState.RUNNING
    assert story.devices() == ["GPU-a0", "GPU-a1"]
    story.check_replay()


def test_a_job_that_may_shrink_continues_with_fewer_workers() -> None:
    story = DeviceStory()
    story.gpu_node("a", 3)
    story.run("j", workers=3, min_workers=1)
    story.mark("fail", "GPU-a1")
    story.end_rest(KILLED)
    assert story.state() is JobState.WAITING
    story.fire()
    story.bring_up()
    assert story.devices() == ["GPU-a0", "GPU-a2"]


def test_a_standby_place_is_used() -> None:
    story = DeviceStory()
    story.gpu_node("a", 2)
    story.gpu_node("b", 2)
    story.run("j", workers=2, standby=1)
    story.mark("fail", "GPU-a0")
    story.end_rest(KILLED)
    story.bring_up()
    assert [worker.node for worker in story.job().workers] == ["b", "b"]


def test_a_job_without_a_restart_budget_is_replaced_too() -> None:
    story = DeviceStory()
    story.gpu_node("a", 2)
    story.run("j", workers=1, restarts=RestartLimits(max_restarts=0))
    story.mark("fail", "GPU-a0")
    story.end_rest(KILLED)
    story.bring_up()
    assert story.state() is JobState.RUNNING and story.devices() == ["GPU-a1"]


def test_a_worker_that_dies_of_it_before_it_is_stopped_is_not_to_blame() -> None:
    story = DeviceStory()
    story.gpu_node("a", 3)
    story.run("j", workers=2)
    story.mark("fail", "GPU-a1", why="Xid 79")
    story.exit(1, KILLED, at_s=5.0)
    story.end_rest(KILLED)
    story.bring_up()
    assert story.state() is JobState.RUNNING
    assert story.incident().kind == "device-failed" and story.incident().culprit is None
    assert story.job().restarts == 0


def test_a_device_that_fails_while_its_job_starts() -> None:
    story = DeviceStory()
    story.gpu_node("a", 3)
    story.submit("j", workers=2)
    story.mark("fail", "GPU-a0")
    story.end_rest(KILLED)
    story.bring_up()
    assert story.state() is JobState.RUNNING and story.devices() == ["GPU-a1", "GPU-a2"]
    story.check_replay()


def test_failing_twice_and_unknown_devices_change_nothing() -> None:
    story = DeviceStory()
    story.gpu_node("a", 3)
    story.run("j", workers=2)
    assert story.mark("fail", "GPU-nowhere") == []
    story.mark("fail", "GPU-a2")
    assert story.mark("fail", "GPU-a2") == []
    assert story.state() is JobState.RUNNING
    assert [note.what for note in story.fleet.devices["GPU-a2"].history] == ["seen on a", "failed"]


def test_a_quarantine_outlives_the_agent_and_an_absence_of_the_device() -> None:
    story = DeviceStory()
    story.gpu_node("a", 3)
    story.mark("fail", "GPU-a1")
    story.gpu_node("a", 3)
    assert story.fleet.nodes["a"].room == 2
    story.gpu_node("a", 3, without=("GPU-a1", "GPU-a2"))
    assert not story.fleet.devices["GPU-a1"].present
    assert "GPU-a2" not in story.fleet.devices, "nobody took it out of use, so it is forgotten"
    story.gpu_node("a", 3)
    assert story.fleet.devices["GPU-a1"].out is not None and story.fleet.devices["GPU-a1"].present
    assert story.fleet.nodes["a"].room == 2
    story.check_replay()


def test_a_host_without_gpus_is_one_device_and_its_failure_empties_the_node() -> None:
    from torchloom.model.events import NodeJoined, WorkerRegistered
    from torchloom.model.node import Inventory
    from torchloom.model.worker import DeviceUse

    story = DeviceStory()
    whole = DeviceUse("cpu-a-0-3", "cpu", "CPU cores 0-3")
    inventory = Inventory(hostname="a", address="a", boot_id="b", max_workers=8, devices=(whole,))
    story.tell(NodeJoined(node="a", session="s1", inventory=inventory))
    story.run("j", workers=2)
    pinned = DeviceUse("cpu-a-2", "cpu", "CPU core 2")
    story.tell(WorkerRegistered(node="a", ref=story.ref(0), devices=(pinned,)))
    assert story.on("cpu-a-0-3") == [("j", 0)], "a part of the cores belongs to the device"
    story.mark("fail", "cpu-a-0-3")
    story.end_rest(KILLED)
    assert story.state() is JobState.WAITING
    assert story.fleet.nodes["a"].room == 0


def test_a_socket_that_fails_leaves_the_other_one_to_the_job() -> None:
    from torchloom.model.events import NodeJoined
    from torchloom.model.node import Inventory
    from torchloom.model.worker import DeviceUse

    story = DeviceStory()
    sockets = tuple(DeviceUse(f"cpu-a-{text}", "cpu", f"CPU cores {text}") for text in ("0-3", "4-7"))
    inventory = Inventory(hostname="a", address="a", boot_id="b", max_workers=8, devices=sockets)
    story.tell(NodeJoined(node="a", session="s1", inventory=inventory))
    story.run("j", workers=2)
    for worker in story.job("j").workers:
        worker.devices = sockets
    story.mark("fail", "cpu-a-0-3", why="memory errors")
    story.end_rest(KILLED)
    assert story.fleet.nodes["a"].limit() == 4
    story.store_up()
    assert story.open(StartWorkers)[-1].barred == ("cpu-a-0-3",)
