"""SuperBench on one device, through a stand-in for `sb exec`: what it measures, and that it is bounded."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import psutil
import pytest
import superbench_stand_in

from torchloom.agent.health.superbench_exec import installed, run_superbench
from torchloom.model.device_wear import TestResult

WITHIN_S = 120.0


def env(directory: Path) -> dict[str, str]:
    return {"PATH": f"{directory}:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "GPU-a"}


def run(directory: Path, mode: str, within_s: float = 300.0, **more: str) -> TestResult | None:
    sb = superbench_stand_in.install(directory, mode)
    assert installed(env(directory)) == str(sb)
    return asyncio.run(run_superbench(str(sb), env(directory) | more, within_s))


@pytest.fixture(autouse=True)
def own_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What it leaves behind would be here."""
    here = tmp_path / "temporary"
    here.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(here))
    return here


def test_its_measurements_are_those_of_the_device(tmp_path: Path, own_temporary: Path) -> None:
    found = run(tmp_path, "runs")
    assert found is not None and found.passed and found.source == "superbench"
    assert [(one.name, one.value) for one in found.metrics] == [
        ("gemm-flops/rate", 1005.0),
        ("kernel-launch/rate", 1005.0),
        ("mem-bw/rate", 1005.0),
    ]
    assert not list(own_temporary.iterdir())


def test_a_configuration_of_the_user_is_run_instead(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text('{"superbench": {"benchmarks": {"nccl-bw:nvlink": {"enable": true}}}}')
    found = run(tmp_path, "runs", LOOM_SUPERBENCH=str(config))
    assert found is not None and [one.name for one in found.metrics] == ["nccl-bw:nvlink/rate"]


def test_a_benchmark_that_fails_is_a_fault_and_one_that_is_not_installed_is_none(tmp_path: Path) -> None:
    broken = run(tmp_path, "broken")
    assert broken is not None and not broken.passed and broken.why == "gemm-flops returned 32"
    assert run(tmp_path, "missing") is None
    crashed = run(tmp_path, "crashes")
    assert (
        crashed is not None and crashed.passed
    )  # its files are complete; what it does afterwards is not ours


def test_one_that_hangs_is_killed_with_its_children(tmp_path: Path, own_temporary: Path) -> None:
    assert run(tmp_path, "hangs", within_s=1.0) is None
    assert not list(own_temporary.iterdir())
    psutil.wait_procs(left := still_there(own_temporary), timeout=WITHIN_S)
    assert not still_there(own_temporary), left


def still_there(directory: Path) -> list[psutil.Process]:
    """Processes that name the directory and are not dead; one that was killed may take a moment to die."""
    found = psutil.process_iter(["cmdline", "status"])
    living = [one for one in found if one.info["status"] != psutil.STATUS_ZOMBIE]
    return [one for one in living if str(directory) in " ".join(one.info["cmdline"] or ())]


def test_another_program_of_that_name_is_not_started(tmp_path: Path) -> None:
    other = tmp_path / "sb"
    other.write_text("#!/bin/sh\nexit 0\n")
    other.chmod(0o755)
    assert installed(env(tmp_path)) == ""
    other.unlink()
    assert installed(env(tmp_path)) == ""
    assert asyncio.run(run_superbench(str(other), env(tmp_path))) is None
