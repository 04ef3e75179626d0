"""The strongest oracle: a disturbed run ends bit-identical to an undisturbed one, on the same samples."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from runs import Run, compare, disturb
from stack import Stack

TURN = ("worker", "agent", "worker", "weaver", "nats", "worker", "spawner", "worker", "agent", "worker")


@pytest.mark.parametrize("world", [2, 3, 4])
def test_killed_workers_resume_bit_identical_from_memory(stack: Stack, tmp_path: Path, world: int) -> None:
    args = ("--every", "20", "--step-ms", "20")
    plain = Run(stack, tmp_path / "plain", world, 60, *args)
    plain.finish()
    disturbed = Run(stack, tmp_path / "disturbed", world, 60, *args)
    disturbed.wait_step(7)
    disturbed.kill_worker(world - 1)
    disturbed.wait_step(25)
    disturbed.kill_worker(0)
    status = disturbed.finish()
    log = stack.loom("logs", disturbed.job).stdout
    assert status["restarts"] == 2, f"{stack.json('incidents', disturbed.job)}\n{log}"
    assert "restored from memory" in log
    compare(plain, disturbed)


def test_a_disturbed_run_resumes_bit_identical_from_disk(stack: Stack, tmp_path: Path) -> None:
    args = ("--every", "5", "--step-ms", "20", "--no-memory")
    plain = Run(stack, tmp_path / "plain", 3, 60, *args)
    plain.finish()
    disturbed = Run(stack, tmp_path / "disturbed", 3, 60, *args)
    disturb(disturbed, 60, ("worker", "spawner", "worker", "nats", "worker"), seed=11)
    assert disturbed.finish()["restarts"] >= 3
    assert "restored from the store" in stack.loom("logs", disturbed.job).stdout
    compare(plain, disturbed)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("tier", ["memory", "disk"])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_ten_kills_of_everything_leave_no_trace(stack: Stack, tmp_path: Path, world: int, tier: str) -> None:
    args = ("--every", "25", "--step-ms", "30", *(("--no-memory",) if tier == "disk" else ()))
    plain = Run(stack, tmp_path / "plain", world, 300, *args)
    plain.finish(300)
    disturbed = Run(stack, tmp_path / "disturbed", world, 300, *args)
    disturb(disturbed, 300, TURN, seed=int(os.environ.get("LOOM_SEED", "5")))
    disturbed.finish(600)
    compare(plain, disturbed)
