"""Tests of devices, and what the policy does about a device that is likely to fail."""

from __future__ import annotations

from core_story import KILLED
from device_story import DeviceStory

from torchloom.core.devices.reported_health import level_of
from torchloom.core.devices.wear import DAY_S
from torchloom.model.device_wear import DeviceResult, DeviceWear, TestMetric, TestResult, WearCounts
from torchloom.model.devices import Device, DevicePolicy
from torchloom.model.effects import Effect, StartWorkers, TestDevice
from torchloom.model.events import (
    DevicePolicySet,
    DeviceTested,
    DeviceTestRequested,
    DeviceTestsImported,
    DeviceWearReported,
    EffectFailed,
    NodeGone,
    NodeUnreachable,
)
from torchloom.model.fleet import JobState


class TestedStory(DeviceStory):
    """A node with four GPUs, and verbs for what is counted and tested on them."""

    __test__ = False

    def __init__(self, **policy: object) -> None:
        super().__init__()
        self.gpu_node("a", 4)
        if policy:
            self.tell(DevicePolicySet(policy=DevicePolicy(**policy), by="ann"))  # type: ignore[arg-type]

    def device(self, id: str) -> Device:
        return self.fleet.devices[id]

    def count(self, device: str, node: str = "a", **counts: float) -> list[Effect]:
        wear = WearCounts(watched_s=2 * DAY_S, **counts)
        return self.tell(DeviceWearReported(node=node, wear=(DeviceWear(device, wear),)))

    def ask(self, device: str, then: str = "nothing") -> list[Effect]:
        return self.tell(DeviceTestRequested(device=device, by="ann", then=then))  # type: ignore[arg-type]

    def answer(self, passed: bool = True, why: str = "", **metrics: float) -> list[Effect]:
        (effect,) = self.tests()
        values = tuple(TestMetric(name=name, value=value) for name, value in metrics.items())
        result = TestResult(source="loom", passed=passed, why=why, metrics=values, measured=len(values))
        return self.tell(
            DeviceTested(node=effect.node, effect=effect.id, device=effect.device, result=result)
        )

    def tests(self) -> list[TestDevice]:
        return [one for one in self.fleet.outbox.values() if isinstance(one, TestDevice)]

    def said(self, device: str) -> list[str]:
        return [note.what for note in self.device(device).history]


SICK = {"hard_errors": 5.0, "link_errors": 500.0, "throttled_s": DAY_S}


def test_by_default_a_risk_is_recorded_and_nothing_is_done() -> None:
    story = TestedStory()
    story.run("j", workers=2)
    assert story.count("GPU-a0", **SICK) == []
    device = story.device("GPU-a0")
    assert device.at_risk and device.out is None and story.state() is JobState.RUNNING
    assert story.said("GPU-a0")[-1].startswith("at risk: ") and "hard errors" in device.history[-1].why
    lines = len(device.history)
    story.count("GPU-a0", **SICK)
    assert len(device.history) == lines, "said once"
    story.now_ns += int(60 * DAY_S * 1e9)
    story.count("GPU-a0")
    assert not device.at_risk and story.said("GPU-a0")[-1] == "no longer at risk"
    story.check_replay()


def test_an_agent_counts_only_for_its_own_devices() -> None:
    story = TestedStory()
    story.gpu_node("b", 1)
    story.count("GPU-a0", node="b", **SICK)
    assert story.device("GPU-a0").wear is None


def test_a_device_at_risk_is_tested_when_it_is_idle_and_drained_if_it_fails() -> None:
    story = TestedStory(at_risk="test")
    story.run("j", workers=2)
    story.count("GPU-a0", **SICK)
    assert not story.tests(), "a worker uses it"
    story.mark("fail", "GPU-a1")
    story.end_rest(KILLED)
    (effect,) = story.tests()
    assert effect.device == "GPU-a0" and "to fail within a day" in effect.reason
    story.bring_up()
    assert story.devices() == ["GPU-a2", "GPU-a3"], "it gets no worker while it is tested"
    story.answer(passed=False, why="a product is wrong")
    out = story.device("GPU-a0").out
    assert out is not None and (out.how, out.by) == ("drained", "policy")
    assert "it failed its test: a product is wrong" in out.why
    assert level_of(story.device("GPU-a0")) == "failing"
    story.check_replay()


def test_a_device_at_risk_that_passes_stays_in_use_and_is_not_tested_again_and_again() -> None:
    story = TestedStory(at_risk="test")
    story.count("GPU-a0", **SICK)
    story.answer()
    device = story.device("GPU-a0")
    assert device.out is None and device.testing is None and "GPU-a0" not in story.fleet.nodes["a"].barred
    story.count("GPU-a0", **SICK)
    assert not story.tests()


def test_drained_then_tested_then_returned() -> None:
    story = TestedStory(at_risk="drain", return_tested=True)
    story.count("GPU-a0", **SICK)
    assert story.device("GPU-a0").out is not None
    story.answer()
    assert story.device("GPU-a0").out is None
    assert story.said("GPU-a0")[-2:] == ["test passed", "returned"]
    careful = TestedStory(at_risk="drain")
    careful.count("GPU-a0", **SICK)
    careful.answer()
    assert careful.device("GPU-a0").out is not None, "only if the policy says so"


def test_a_dry_run_and_the_budget_hold_for_risks_too() -> None:
    story = TestedStory(at_risk="drain", dry_run=True)
    story.count("GPU-a0", **SICK)
    assert story.device("GPU-a0").out is None and not story.tests()
    assert story.said("GPU-a0")[-1] == "dry run, would drain it"
    few = TestedStory(at_risk="test", acts_per_hour=1)
    few.count("GPU-a0", **SICK)
    few.count("GPU-a1", **SICK)
    assert [one.device for one in few.tests()] == ["GPU-a0"]
    assert "within the last hour" in few.said("GPU-a1")[-1]


def test_returned_only_if_it_passes() -> None:
    story = TestedStory()
    story.mark("fail", "GPU-a0")
    story.ask("GPU-a0", then="return")
    assert story.device("GPU-a0").testing is not None
    story.answer(passed=False, why="memory")
    assert story.device("GPU-a0").out is not None
    story.ask("GPU-a0", then="return")
    story.answer()
    device = story.device("GPU-a0")
    assert device.out is None and level_of(device) == "ok" and story.fleet.nodes["a"].room == 4
    story.check_replay()


def test_a_test_that_could_not_run_says_nothing_about_the_device() -> None:
    story = TestedStory()
    story.mark("drain", "GPU-a0")
    story.ask("GPU-a0", then="return")
    (effect,) = story.tests()
    story.tell(EffectFailed(node="a", effect=effect.id, why="torch sees no GPU"))
    device = story.device("GPU-a0")
    assert device.testing is None and device.out is not None and level_of(device) == "ok"
    assert not device.tests and story.said("GPU-a0")[-1] == "test could not run"


def test_a_device_in_use_is_not_tested_and_a_job_waits_for_the_end_of_a_test() -> None:
    story = TestedStory()
    story.run("j", workers=2)
    story.ask("GPU-a0")
    assert not story.tests()
    story.ask("GPU-a2")
    story.submit("k", workers=2)
    assert story.state("k") is JobState.WAITING
    story.answer()
    story.store_up()
    launches = [e for e in story.open(StartWorkers) if e.job == "k"][-1].launches
    assert [launch.device for launch in launches] == ["GPU-a2", "GPU-a3"]


def test_a_host_that_is_lost_during_a_test() -> None:
    story = TestedStory()
    story.mark("drain", "GPU-a0")
    story.ask("GPU-a0", then="return")
    story.tell(NodeUnreachable(node="a", silent_s=4.0))
    story.tell(NodeGone(node="a", by="ann"))
    assert story.device("GPU-a0").testing is None and not story.tests()
    story.gpu_node("a", 4)
    assert story.device("GPU-a0").out is not None and story.fleet.nodes["a"].room == 3


def test_an_answer_from_an_older_test_changes_nothing() -> None:
    story = TestedStory()
    story.mark("drain", "GPU-a0")
    story.ask("GPU-a0", then="return")
    stale = TestResult(source="loom", passed=True)
    story.tell(DeviceTested(node="a", effect="e1-7", device="GPU-a0", result=stale))
    assert story.device("GPU-a0").out is not None and story.device("GPU-a0").testing is not None


def test_a_device_far_slower_than_others_of_its_name_fails() -> None:
    story = TestedStory()
    story.gpu_node("b", 3)
    for device in ("GPU-b0", "GPU-b1", "GPU-b2", "GPU-a1", "GPU-a2"):
        story.ask(device)
        story.answer(gemm_gflops=100.0 + len(story.device(device).history))
    story.ask("GPU-a0")
    story.answer(gemm_gflops=30.0)
    result = story.device("GPU-a0").tests[-1]
    assert not result.passed and "worse than the median of devices like it" in result.why
    assert story.device("GPU-a1").tests[-1].passed


def test_imported_results_count_and_a_bad_one_is_a_matter_of_policy() -> None:
    story = TestedStory(rules={"failing": "drain"})
    bad = TestResult(source="superbench", passed=False, why="mem-bw returned 1")
    good = TestResult(source="superbench", passed=True)
    event = DeviceTestsImported(
        results=(DeviceResult("GPU-a0", bad), DeviceResult("GPU-a1", good), DeviceResult("GPU-x", bad)),
        by="ann",
    )
    story.tell(event)
    assert story.device("GPU-a0").out is not None and story.device("GPU-a1").out is None
    assert story.device("GPU-a1").tests[-1].at_ns == story.fleet.now_ns
    story.check_replay()


def test_a_device_that_fails_during_its_test_is_not_returned() -> None:
    by_person = TestedStory()
    by_person.mark("drain", "GPU-a0")
    by_person.ask("GPU-a0", then="return")
    by_person.mark("fail", "GPU-a0", why="smoke")
    by_person.answer()
    out = by_person.device("GPU-a0").out
    assert out is not None and out.how == "failed"
    by_source = TestedStory()
    by_source.mark("drain", "GPU-a0")
    by_source.ask("GPU-a0", then="return")
    by_source.health("GPU-a0", "failed", "the GPU has fallen off the bus (Xid 79)")
    by_source.answer()
    assert by_source.device("GPU-a0").out is not None
    assert by_source.said("GPU-a0")[-1] == "not returned"
