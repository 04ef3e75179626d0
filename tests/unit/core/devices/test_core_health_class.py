"""Measurements become a class: certain signs at once, others when they last, better after a while."""

from __future__ import annotations

import pytest

from torchloom.core.devices.exposition import readings
from torchloom.core.devices.health_class import BETTER_AFTER_S, LASTING_S, DeviceMemory, Judged, judge
from torchloom.model.devices import DeviceReading


def reading(*states: str, error: str = "", **values: float) -> DeviceReading:
    return DeviceReading(device="GPU-1", source="nvml", states=states, error=error, values=values)


def test_a_healthy_device_is_nothing_to_say() -> None:
    memory = DeviceMemory()
    for second in range(100):
        assert judge(memory, reading(temperature_celsius=60.0, pcie_replays=5.0), float(second)) is None


@pytest.mark.parametrize(
    ("found", "level", "says"),
    [
        (reading(error="GPU is lost"), "failed", "GPU is lost"),
        (reading("xid: 79"), "failed", "fallen off the bus (Xid 79)"),
        (reading("xid: 95", "xid: 95"), "failed", "(Xid 95, 2 times)"),
        (reading(remap_failed=1.0), "failed", "could not be remapped"),
        (reading("xid: 48"), "failing", "Xid 48"),
        (reading("xid: 74"), "failing", "NVLink error"),
        (reading(ecc_uncorrected_errors=3.0), "failing", "3 uncorrected ECC errors"),
        (reading(remap_pending=1.0), "failing", "next reset"),
    ],
)
def test_certain_signs_count_at_once(found: DeviceReading, level: str, says: str) -> None:
    judged = judge(DeviceMemory(), found, 0.0)
    assert judged is not None and judged.level == level and says in judged.why


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 8, 999])
def test_an_error_of_a_program_says_nothing_about_the_device(code: int) -> None:
    assert judge(DeviceMemory(), reading(f"xid: {code}"), 0.0) is None


def test_throttling_counts_when_it_lasts_and_is_named_with_the_temperature() -> None:
    memory, hot = DeviceMemory(), reading("throttle: thermal", temperature_celsius=87.0)
    assert judge(memory, hot, 0.0) is None
    assert judge(memory, reading(), 5.0) is None
    assert judge(memory, hot, 6.0) is None
    assert judge(memory, hot, 6.0 + LASTING_S / 2) is None
    assert judge(memory, hot, 6.0 + LASTING_S) == Judged("degraded", "throttles, thermal, 87 °C", "throttles")
    warmer = reading("throttle: thermal", temperature_celsius=88.0)
    assert judge(memory, warmer, 20.0) is None, "another temperature is nothing new"


def test_the_power_cap_is_how_gpus_are_meant_to_run() -> None:
    memory = DeviceMemory()
    assert all(judge(memory, reading("throttle: power cap"), float(at)) is None for at in range(60))


def test_better_is_believed_after_a_while_and_worse_at_once() -> None:
    memory = DeviceMemory()
    judge(memory, reading(error="GPU is lost"), 0.0)
    assert judge(memory, reading(), 1.0) is None
    assert judge(memory, reading(error="GPU is lost"), 2.0) is None
    assert judge(memory, reading(), 3.0) is None
    assert judge(memory, reading(), 2.0 + BETTER_AFTER_S) is None, "it was worse in between"
    better = judge(memory, reading(), 3.0 + BETTER_AFTER_S)
    assert better is not None and better.level == "ok"
    again = judge(memory, reading("xid: 79"), 40.0)
    assert again is not None and again.level == "failed"


def test_a_second_xid_is_news() -> None:
    memory = DeviceMemory()
    assert judge(memory, reading("xid: 79"), 0.0) is not None
    assert judge(memory, reading("xid: 79"), 1.0) is None
    assert judge(memory, reading("xid: 79", "xid: 79"), 2.0) is not None


def test_errors_that_climb_count_by_their_rate_and_not_by_their_number() -> None:
    memory = DeviceMemory()
    many = 1e6
    assert judge(memory, reading(ecc_corrected_errors=many), 0.0) is None
    assert judge(memory, reading(ecc_corrected_errors=many + 50), 600.0) is None
    climbs = judge(memory, reading(ecc_corrected_errors=many + 101), 1200.0)
    assert climbs is not None and climbs.level == "degraded" and "101 corrected ECC errors" in climbs.why
    assert len(memory.counts) < 300


DCGM = """\
# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",device="nvidia0",modelName="H100"} 87
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-1",err_msg="a \\"quoted\\" text"} 79
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-2"} 1024
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="1",UUID="GPU-2"} 40
DCGM_FI_DEV_XID_ERRORS{gpu="1",UUID="GPU-2"} 0
DCGM_FI_DEV_GPU_TEMP{gpu="2"} 40
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-2"} NaN
node_load1 3.5
node_hwmon_temp_celsius{chip="a"} 40
node_hwmon_temp_celsius{chip="b"} 55
this is { no sample
"""


def test_what_exporters_publish_is_read_and_garbage_is_left_out() -> None:
    one, two, host = readings(DCGM, "n")
    assert (one.device, one.values, one.states) == ("GPU-1", {"temperature_celsius": 87.0}, ("xid: 79",))
    assert two.values == {"memory_used_bytes": 1024 * 2**20}
    assert two.states == ("throttle: hardware", "throttle: thermal")
    assert (host.device, host.values) == ("host-n", {"load": 3.5, "temperature_celsius": 55.0})
    assert readings("\x00\xff garbage {{{ 12\n" * 1000, "n") == []
