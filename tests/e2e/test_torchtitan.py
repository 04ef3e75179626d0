"""torchtitan's own trainer, unmodified, on CPUs: seen, steered, killed, resumed, stopped in its own way.

It is laid over this environment (`pip install --target`, without dependencies), so that nothing here is
replaced: about 1.3 GB, most of it triton, which torchtitan imports.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stack import SCRIPTS, Stack, wait_until

PACKAGES = (
    "torchtitan==0.2.2",
    "torchdata==0.11.0",
    "datasets==4.0.0",
    "tyro==1.0.16",
    "einops==0.8.2",
    "triton",
    "pandas",
    "pyarrow",
    "dill==0.3.8",
    "xxhash",
    "multiprocess==0.70.16",
    "docstring_parser",
    "shtab",
    "typeguard",
    "python-dateutil",
    "six",
    "pytz",
    "tzdata",
)
FLAGS = (
    "--model.name tiny --model.flavor debugmodel --training.steps 100000 --training.seq_len 32"
    " --training.local_batch_size 2 --metrics.log_freq 1 --metrics.disable_color_printing"
    " --checkpoint.enable --checkpoint.interval 1000000"
    # FSDP2 reduces with PREMUL_SUM here, which gloo does not have.
    " --parallelism.data_parallel_replicate_degree 2 --parallelism.data_parallel_shard_degree 1"
)


@pytest.mark.long
def test_torchtitan_is_seen_steered_paused_killed_resumed_stopped_and_continued(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = tmp_path / "packages"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", str(over), *PACKAGES], check=True, timeout=900)
    monkeypatch.setitem(stack.env, "PYTHONPATH", str(over))
    script = [str(SCRIPTS / "titan_cpu.py"), *FLAGS.split(), "--job.dump_folder", str(tmp_path / "out")]
    job = stack.submit(*script)

    def trains(generation: int, past: int) -> bool:
        view = stack.try_status(job)
        assert view.get("state") not in ("failed", "completed"), view["reason"]
        return view.get("generation") == generation and int(view["step"] or 0) > past

    wait_until(lambda: trains(1, 10), "it makes steps", 600.0)
    assert stack.status(job)["total_steps"] == 100_000

    def metric(name: str) -> float | None:
        return (stack.status(job)["workers"][0]["metrics"] or {}).get(name)

    wait_until(lambda: metric("loss") is not None, "its loss is shown")
    stack.steer("set", job, "lr=0.000123")
    wait_until(lambda: metric("lr") == 0.000123, "its own log has the learning rate in force")

    stack.steer("pause", job)
    wait_until(
        lambda: {worker["phase"] for worker in stack.status(job)["workers"]} == {"paused"}, "both ranks pause"
    )
    paused = int(stack.status(job)["step"])
    stack.loom("logs", job)
    assert stack.status(job)["paused"] and stack.status(job)["step"] == paused
    stack.steer("resume", job)
    wait_until(lambda: trains(1, paused + 1), "it makes steps after the pause")

    made = re.search(r"step-(\d+)\.g1 is committed", stack.steer("checkpoint", job).stdout)
    assert made is not None
    at = int(made[1])
    os.kill(stack.worker_pid(job, 1), signal.SIGKILL)
    wait_until(lambda: trains(2, at), "it resumes", 600.0)
    assert f"Training starts at step {at + 1}" in stack.loom("logs", job).stdout
    assert stack.json("checkpoints", job)["restored"] == f"step-{at}.g1"
    wait_until(lambda: stack.status(job)["workers"][0]["steps"] > 3, "steps are counted after the restore")
    stack.loom("stop", job)
    assert stack.wait_state(job, "stopped")["state"] == "stopped"
    assert "Training completed" in stack.loom("logs", job).stdout
    last = newest(stack, job)
    assert last > at and last == stack.status(job)["step"]
    whole = (tmp_path / "out" / "checkpoint" / f"step-{last}" / ".metadata").read_bytes()
    assert b"exp_avg" in whole, "the optimizer is in it: not the model alone"

    stack.loom("restart", job, "--max-steps", str(last + 5))
    view = stack.wait_state(job, "completed", "failed", timeout_s=600.0)
    assert view["state"] == "completed" and view["step"] == last + 5, view["reason"]
    assert f"Training starts at step {last + 1}" in stack.loom("logs", job).stdout
    assert newest(stack, job) == last + 5


def newest(stack: Stack, job: str) -> int:
    return max(int(one["step"]) for one in stack.json("checkpoints", job)["checkpoints"])
