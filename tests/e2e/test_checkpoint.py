"""`loom.Checkpoint` with real ranks: shards that move, buckets that come back, S3 that goes away."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from runs import Run, compare
from s3 import S3Server
from stack import BIN, SCRIPTS, Stack, wait_until

from torchloom.checkpoint import tier


def torchrun(world: int, script: str, *args: str) -> list[str]:
    """Lines that a script printed under torchrun: without torchloom around it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("LOOM_")} | {"OMP_NUM_THREADS": "1"}
    command = [
        str(BIN / "torchrun"),
        "--standalone",
        "--nproc-per-node",
        str(world),
        str(SCRIPTS / script),
        *args,
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_a_state_moves_between_worlds(tmp_path: Path, kind: str) -> None:
    saved = torchrun(2, "reshard.py", kind, str(tmp_path), "3")[-1].removeprefix("saved ")
    for world, steps in ((3, 6), (1, 9)):
        first, last = torchrun(world, "reshard.py", kind, str(tmp_path), str(steps))
        assert first == f"restored {saved}"
        saved = last.removeprefix("saved ")


def test_buckets_come_back_without_a_trace() -> None:
    assert torchrun(3, "buckets.py") == ["the same buckets"]


def test_a_run_on_s3_survives_the_death_of_workers_and_of_the_server(
    stack: Stack, s3: S3Server, tmp_path: Path
) -> None:
    stack.env |= {**s3.environment, "LOOM_STORE_TIMEOUT": "1"}
    args = ("--every", "5", "--no-memory", "--step-ms")
    steps = 250
    plain = Run(stack, tmp_path / "plain", 2, steps, *args, "1")
    plain.finish()
    # Long steps, because starting the server again takes seconds on a busy machine.
    disturbed = Run(stack, tmp_path / "disturbed", 2, steps, *args, "150")
    log_file = stack.home.jobs_dir / disturbed.job / "rank-0.log"
    disturbed.wait_step(12)
    s3.kill()
    wait_until(lambda: "training goes on" in log_file.read_text(), "a save that failed")
    s3.start()
    missed = disturbed.lines(0)[-1][1]
    disturbed.wait_step(missed + 30)
    disturbed.kill_worker(1)
    status = disturbed.finish()
    assert status["restarts"] == 1
    log = stack.loom("logs", disturbed.job).stdout
    restored = re.findall(r"goes on after step (\d+), restored from the store", log)
    assert [int(step) > missed for step in restored] == [True], f"saving went on after step {missed}: {log}"
    assert s3.environment["S3_SECRET_KEY"] not in log
    compare(plain, disturbed)


def test_the_memory_tier_is_there_while_the_job_runs_and_goes_with_it(stack: Stack, tmp_path: Path) -> None:
    run = Run(stack, tmp_path / "out", 2, 100_000, "--every", "50", "--step-ms", "5")
    run.wait_step(20)
    folder = tier.directory(stack.home.boxes, run.job)
    wait_until(lambda: tier.size(folder) > 0, "a state in memory")
    assert sum(name.name.startswith("shared.") for name in folder.iterdir()) in (1, 2, 3)
    stack.loom("stop", run.job)
    stack.loom("down")
    assert not folder.exists()
    assert stack.leftovers() == []
