"""What sources say of a device's health, and what the policy makes of it."""

from __future__ import annotations

from core_story import KILLED
from device_story import DeviceStory

from torchloom.core.devices.reported_health import level_of
from torchloom.model.devices import DevicePolicy, HealthReport
from torchloom.model.events import DeviceHealthReported, DevicePolicySet
from torchloom.model.fleet import JobState


def story_with(**policy: object) -> DeviceStory:
    story = DeviceStory()
    story.gpu_node("a", 4)
    if policy:
        story.tell(DevicePolicySet(policy=DevicePolicy(**policy), by="ann"))  # type: ignore[arg-type]
    story.run("j", workers=2)
    return story


def test_by_default_only_a_failed_device_is_acted_on() -> None:
    story = story_with()
    story.health("GPU-a0", "degraded", "throttles, thermal, 87 °C")
    story.health("GPU-a0", "failing", "12 rows remapped")
    assert story.state() is JobState.RUNNING
    story.health("GPU-a0", "failed", "the GPU has fallen off the bus (Xid 79)")
    assert story.state() is JobState.RECOVERING
    out = story.fleet.devices["GPU-a0"].out
    assert out is not None and out.by == "policy" and "Xid 79" in out.why
    story.end_rest(KILLED)
    story.bring_up()
    assert story.devices() == ["GPU-a1", "GPU-a2"]
    story.check_replay()


def test_the_worst_of_all_sources_counts_and_each_speaks_for_itself() -> None:
    story = story_with(rules={"failed": "report"})
    device = story.fleet.devices["GPU-a0"]
    story.health("GPU-a0", "degraded", source="nvml")
    story.health("GPU-a0", "failed", source="monitor")
    story.health("GPU-a0", "ok", source="nvml")
    assert level_of(device) == "failed"
    story.health("GPU-a0", "ok", source="monitor")
    assert level_of(device) == "ok" and device.out is None


def test_rules_can_drain_and_report() -> None:
    story = story_with(rules={"failing": "drain", "failed": "report"})
    story.health("GPU-a0", "failing", "ECC")
    out = story.fleet.devices["GPU-a0"].out
    assert out is not None and (out.how, out.by) == ("drained", "policy")
    story.health("GPU-a1", "failed", "x")
    assert story.fleet.devices["GPU-a1"].out is None and story.state() is JobState.RUNNING


def test_a_dry_run_only_records() -> None:
    story = story_with(dry_run=True)
    story.health("GPU-a0", "failed", "gone")
    device = story.fleet.devices["GPU-a0"]
    assert device.out is None and story.state() is JobState.RUNNING
    assert device.history[-1].what == "dry run, would fail it"


def test_the_budget_bounds_what_a_policy_does_within_an_hour() -> None:
    story = story_with(acts_per_hour=2)
    for index in range(4):
        story.health(f"GPU-a{index}", "failed", "gone")
    out = [story.fleet.devices[f"GPU-a{index}"].out is not None for index in range(4)]
    assert out == [True, True, False, False]
    assert "within the last hour" in story.fleet.devices["GPU-a3"].history[-1].what
    story.health("GPU-a3", "ok")
    story.now_ns += 3601 * 10**9
    story.health("GPU-a3", "failed", "gone")
    assert story.fleet.devices["GPU-a3"].out is not None


def test_an_agent_speaks_only_for_devices_of_its_own_node() -> None:
    story = story_with()
    story.gpu_node("b", 1)
    report = HealthReport(device="GPU-a0", level="failed", source="nvml")
    story.tell(DeviceHealthReported(node="b", health=(report,)))
    assert level_of(story.fleet.devices["GPU-a0"]) == "ok" and story.state() is JobState.RUNNING


def test_better_health_does_not_return_a_device() -> None:
    story = story_with()
    story.health("GPU-a3", "failed", "gone")
    story.health("GPU-a3", "ok")
    assert story.fleet.devices["GPU-a3"].out is not None
    story.mark("return", "GPU-a3")
    story.health("GPU-a3", "failed", "gone again")
    assert story.fleet.devices["GPU-a3"].out is not None
    assert len(story.fleet.devices["GPU-a3"].history) <= 64


def test_a_straggler_s_verdict_names_the_throttling_of_its_device() -> None:
    from torchloom.model.events import FindingMade
    from torchloom.model.findings import Finding

    story = story_with()
    story.health("GPU-a1", "degraded", "throttles, thermal, 87 °C")
    finding = Finding(kind="compute-slow", ranks=(1,), sentence="rank 1 is 1.4 × slower", confidence=0.9)
    story.tell(FindingMade(job="j", generation=1, finding=finding))
    assert story.incident().verdict == "rank 1 is 1.4 × slower: GPU-a1 throttles, thermal, 87 °C"
    other = Finding(kind="data-slow", ranks=(0,), sentence="rank 0 waits for data", confidence=0.9)
    story.tell(FindingMade(job="j", generation=1, finding=other))
    assert story.incident().verdict == "rank 0 waits for data"
