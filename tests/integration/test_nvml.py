"""NVML through the real nvidia-ml-py and a real child process; only the driver's library is a stand-in."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from nvml_stand_in import NvmlStandIn, gpu

from torchloom.agent.health import known_gpus
from torchloom.agent.health.isolation import look_once, looks
from torchloom.cli.doctor import sight
from torchloom.model.devices import DeviceReading

WITHIN_S = 120.0
"""For a child on a busy machine."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> NvmlStandIn:
    return NvmlStandIn(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(library: NvmlStandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[NvmlStandIn]:
    for name, value in library.env.items():
        monkeypatch.setenv(name, value)
    # LD_LIBRARY_PATH of this process was read at its start; its children read it now.
    monkeypatch.setattr("torchloom.agent.health.nvml.LIBRARY", str(library.directory / "libnvidia-ml.so.1"))
    yield library
    library.write(0)


def read(tmp_path: Path) -> list[DeviceReading]:
    line = look_once("nvml", "n", tmp_path, WITHIN_S)
    assert line.look is not None, line.why
    assert line.look.complete
    return list(line.look.readings)


def test_eight_healthy_gpus_with_all_that_nvml_knows(nvml: NvmlStandIn, tmp_path: Path) -> None:
    nvml.write(8, {"3.pid": 4711})
    found = read(tmp_path)
    assert [one.device for one in found] == [gpu(index) for index in range(8)]
    third = found[3]
    assert (third.name, third.index, third.pci, third.error) == ("Test GPU", 3, "0000:3e:00", "")
    assert third.values["temperature_celsius"] == 45 and third.values["power_watts"] == 300
    assert third.values["memory_bytes"] == 80 << 30 and third.values["utilization_ratio"] == 0.5
    assert third.values["clock_hertz"] == 1.98e9 and third.values["nvlink_errors"] == 0
    assert {"ecc_uncorrected_errors", "remap_pending", "pcie_replays"} <= third.values.keys()
    assert third.processes == (4711,) and third.states == ()


def test_mig_instances_stand_for_their_gpu_and_share_its_faults(nvml: NvmlStandIn, tmp_path: Path) -> None:
    nvml.write(2, {"1.mig": 2, "1.throttle": 0x20})
    found = read(tmp_path)
    assert [one.device for one in found] == [gpu(0), "MIG-00000001-0000", "MIG-00000001-0001"]
    assert found[2].states == ("throttle: thermal",) and found[2].name == "Test GPU MIG 1g.10gb"


def test_hot_ecc_and_lost_gpus(nvml: NvmlStandIn, tmp_path: Path) -> None:
    nvml.write(3, {"0.temp": 87, "0.throttle": 0x60, "1.ecc_uncorrected": 2, "2.lost": 1})
    hot, ecc, lost = read(tmp_path)
    assert hot.values["temperature_celsius"] == 87
    assert hot.states == ("throttle: thermal", "throttle: thermal, by hardware")
    assert ecc.values["ecc_uncorrected_errors"] == 2
    assert lost.error == "GPU is lost" and lost.device == gpu(2), "its id is still known"


def test_what_may_not_be_read_costs_nothing_else(nvml: NvmlStandIn, tmp_path: Path) -> None:
    nvml.write(2, {"0.denied": 1, "no_events": 1})
    line = look_once("nvml", "n", tmp_path, WITHIN_S)
    assert line.look is not None and [one.device for one in line.look.readings] == [gpu(1)]
    nvml.write(2, {"init": 4})
    line = look_once("nvml", "n", tmp_path, WITHIN_S)
    assert line.look is None and "Insufficient Permissions" in line.why


@pytest.mark.parametrize("code", [1, 4, 9, 10, 18, 999])
def test_a_gpu_that_cannot_be_asked_has_not_disappeared(nvml: NvmlStandIn, tmp_path: Path, code: int) -> None:
    """Uninitialized, no permission, driver not loaded, timeout, driver and library of two versions, unknown:
    what happens while a driver is replaced. Nothing is known about the GPU then."""
    nvml.write(2, {"0.open": code})
    line = look_once("nvml", "n", tmp_path, WITHIN_S)
    assert line.look is not None and not line.look.complete
    assert [one.device for one in line.look.readings] == [gpu(1)]


def test_a_gpu_that_is_lost_or_not_found_is_missing_from_a_complete_list(
    nvml: NvmlStandIn, tmp_path: Path
) -> None:
    for code in (6, 15):
        nvml.write(2, {"0.open": code})
        line = look_once("nvml", "n", tmp_path, WITHIN_S)
        assert line.look is not None and line.look.complete and len(line.look.readings) == 1
    nvml.write(0)
    line = look_once("nvml", "n", tmp_path, WITHIN_S)
    assert line.look is not None and not line.look.complete, "all at once is a driver that is replaced"


def test_an_agent_that_starts_while_nvml_refuses_counts_on_the_gpus_of_before(
    nvml: NvmlStandIn, tmp_path: Path
) -> None:
    nvml.write(2)
    assert len(known_gpus.look("n", tmp_path, WITHIN_S).gpus) == 2
    nvml.write(2, {"init": 18})
    assert len(known_gpus.look("n", tmp_path, WITHIN_S).gpus) == 2
    nvml.write(2, {"1.open": 4})
    assert len(known_gpus.look("n", tmp_path, WITHIN_S).gpus) == 2
    nvml.write(1)
    assert len(known_gpus.look("n", tmp_path, WITHIN_S).gpus) == 1


def test_a_hung_driver_is_given_up_and_the_gpus_of_before_count(nvml: NvmlStandIn, tmp_path: Path) -> None:
    nvml.write(2)
    assert len(known_gpus.look("n", tmp_path, WITHIN_S).gpus) == 2
    nvml.write(2, {"hang": 1})
    line = look_once("nvml", "n", tmp_path, 0.5)
    assert line.look is None and line.hung
    assert [one.uuid for one in known_gpus.look("n", tmp_path, 0.5).gpus] == [gpu(0), gpu(1)]


def test_xid_events_and_a_gpu_that_disappears_and_a_hang_while_it_runs(
    nvml: NvmlStandIn, tmp_path: Path
) -> None:
    nvml.write(2)

    async def follow() -> None:
        async with aclosing(looks("nvml", "n", tmp_path, WITHIN_S)) as lines:
            first = await anext(lines)
            assert first.look is not None and len(first.look.readings) == 2, first.why
            nvml.write(2, {"1.xid": 79, "1.xids": 1, "0.hidden": 1})
            async for line in lines:
                assert line.look is not None, line.why
                if len(line.look.readings) == 1:
                    break
            (left,) = line.look.readings
            assert left.device == gpu(1) and left.states == ("xid: 79",)

    asyncio.run(follow())

    async def hang() -> None:
        nvml.write(2)
        async with aclosing(looks("nvml", "n", tmp_path, WITHIN_S)) as lines:
            assert (await anext(lines)).look is not None
        nvml.write(2, {"hang": 1})
        async with aclosing(looks("nvml", "n", tmp_path, 0.5)) as lines:
            line = await anext(lines)
            assert line.look is None and line.why
            assert [one async for one in lines] == []

    asyncio.run(hang())


WAITS = """
from pathlib import Path
from torchloom.agent.health.nvml import NvmlSource
source = NvmlSource("n", Path("."))
source.look()
print("waits", flush=True)
source.wait(3600.0)
print(*source.look().readings[1].states, flush=True)
"""


def test_an_xid_error_ends_the_wait_for_the_next_look(nvml: NvmlStandIn, tmp_path: Path) -> None:
    """A crash that comes right after its Xid error is reported with it."""
    nvml.write(2)
    command = [sys.executable, "-c", WAITS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "waits\n"
            nvml.write(2, {"1.xid": 79, "1.xids": 1})
            said, _ = process.communicate(timeout=300)
        finally:
            process.kill()
    assert said == "xid: 79\n"


def test_the_doctor_names_a_lost_gpu(nvml: NvmlStandIn) -> None:
    nvml.write(3, {"1.lost": 1})
    listed, health = sight.gpus()
    assert listed.state == "ok" and listed.found.startswith("3 by NVML")
    assert health.state == "limited" and "GPU 1 (" in health.sentence and "lost" in health.sentence.lower()
