"""Hugging Face's Trainer, Lightning and accelerate under torchloom, with the real packages and no line of
torchloom in the scripts (examples/): what is seen, what can be asked of them, what a restart resumes from.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from stack import SCRIPTS, Stack, wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def needs(package: str) -> None:
    """The real package. Without it a test is skipped on a developer's machine and fails in CI."""
    if importlib.util.find_spec(package) is not None:
        return
    why = f"{package} is not installed: make setup, or pip install -e '.[integrations]'"
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


def steps(stack: Stack, job: str) -> int:
    """The newest training step."""
    return int(stack.status(job)["step"] or 0)


def reaches(stack: Stack, job: str, step: int) -> None:
    wait_until(lambda: steps(stack, job) >= step, f"{job} makes step {step}")


def saved(stack: Stack, job: str) -> dict[int, dict[str, Any]]:
    """The checkpoints of the catalogue, by step."""
    return {one["step"]: one for one in stack.json("checkpoints", job)["checkpoints"]}


def metrics_of(stack: Stack, job: str) -> dict[str, Any]:
    found: dict[str, Any] = stack.status(job)["workers"][0]["metrics"] or {}
    return found


def log_of(stack: Stack, job: str) -> str:
    return stack.loom("logs", job).stdout


def live(stack: Stack, job: str) -> int:
    """Steer a job that has made a few steps; the step of the checkpoint that was asked for."""
    reaches(stack, job, 10)
    metrics = wait_until(lambda: (m := metrics_of(stack, job)) and "loss" in m and m, "its own loss is shown")
    assert "epoch" in metrics, metrics
    stack.steer("set", job, "lr=0.000123")
    made = stack.steer("checkpoint", job)
    found = re.search(r"step-(\d+)\.g1 is committed", made.stdout)
    assert found, made.stdout
    at = int(found[1])
    where = Path(saved(stack, job)[at]["where"])
    assert where.exists() and str(at) in where.name
    stack.steer("pause", job)
    refused = stack.loom("checkpoint", job, check=None)
    assert refused.returncode and "resume it first" in refused.stderr and "Traceback" not in refused.stderr
    stack.steer("resume", job)
    reaches(stack, job, at + 5)
    return at


def killed(stack: Stack, job: str) -> None:
    """Kill rank 1 and wait until all ranks of the next generation train: a rank that has only restored its
    step has no pace yet, and a stop would end it by a signal instead of at a boundary."""
    before = stack.status(job)
    os.kill(stack.worker_pid(job, 1), signal.SIGKILL)

    def again() -> bool:
        now = stack.try_status(job)
        if not now or now["generation"] <= before["generation"]:
            return False
        return all(worker["steps"] >= 3 and worker["step_s"] > 0 for worker in now["workers"])

    wait_until(again, "the next generation steps")


def stopped(stack: Stack, job: str) -> int:
    """Stop it; the last step, by the script's own word after its trainer has returned."""
    stack.loom("stop", job)
    assert stack.wait_state(job, "stopped")["state"] == "stopped"
    found = re.findall(r"ended after step (\d+)", log_of(stack, job))
    assert found, log_of(stack, job)
    return int(found[-1])


@pytest.mark.parametrize(
    ("package", "example", "more"),
    [
        ("transformers", "hf_trainer.py", ("--log-every", "2", "--schedule", "constant")),
        ("lightning", "lightning_fit.py", ()),
    ],
)
def test_a_trainer_is_seen_steered_killed_resumed_and_stopped(
    stack: Stack, tmp_path: Path, package: str, example: str, more: tuple[str, ...]
) -> None:
    needs(package)
    script = [str(EXAMPLES / example), "--output-dir", str(tmp_path), "--steps", "1000000"]
    job = stack.submit(*script, "--save-every", "1000000", *more, flags=("--resume", "auto"))
    at = live(stack, job)
    assert stack.status(job)["total_steps"] == 1_000_000
    killed(stack, job)
    assert stack.json("checkpoints", job)["restored"] == f"step-{at}.g1"
    last = stopped(stack, job)
    assert last > at
    # It ended in its own way: a checkpoint of its own, of the very last step, made by the second generation.
    newest = saved(stack, job)[last]
    assert newest["newest"] and newest["generation"] == 2 and Path(newest["where"]).exists()
    if package == "transformers":  # its own log shows the value in force
        assert "'learning_rate': '0.000123'" in log_of(stack, job)
    # Going back to an earlier checkpoint of the trainer's, which nobody has to be told of.
    stack.loom("restore", job, "--step", str(at), "--config", "keep")
    reaches(stack, job, at + 1)
    assert stack.json("checkpoints", job)["restored"] == f"step-{at}.g1"


def test_max_steps_ends_a_trainer_in_its_own_way(stack: Stack, tmp_path: Path) -> None:
    needs("lightning")
    script = [str(EXAMPLES / "lightning_fit.py"), "--output-dir", str(tmp_path), "--steps", "1000000"]
    job = stack.submit(*script, "--save-every", "1000000", workers=1, flags=("--max-steps", "30"))
    assert stack.wait_state(job, "completed", "failed")["state"] == "completed"
    assert "ended after step 30" in log_of(stack, job)
    assert list(saved(stack, job)) == [30]


def test_a_loop_with_accelerate_is_seen_and_resumes(stack: Stack, tmp_path: Path) -> None:
    needs("accelerate")
    script = [str(EXAMPLES / "accelerate_loop.py"), "--output-dir", str(tmp_path), "--steps", "1000000"]
    job = stack.submit(*script, "--save-every", "20")
    wait_until(lambda: 40 in saved(stack, job), "a state of step 40")
    assert "loss" in metrics_of(stack, job)
    made = stack.steer("checkpoint", job)
    asked = re.search(r"step-(\d+)\.g1 is committed", made.stdout)
    assert asked, made.stdout
    where = Path(saved(stack, job)[int(asked[1])]["where"])
    assert where.is_dir() and where.name == f"step-{asked[1]}", "named as the script names its own"
    killed(stack, job)
    resumed = re.search(r"resumed after step (\d+)", log_of(stack, job))
    assert resumed, log_of(stack, job)
    # The count continues where the loaded state was saved.
    wait_until(lambda: steps(stack, job) > int(resumed[1]), "the count continues")
    assert stack.json("checkpoints", job)["restored"].startswith(f"step-{resumed[1]}.g")
    refused = stack.loom(
        "checkpoints", job, "--delete", stack.json("checkpoints", job)["restored"], check=None
    )
    assert refused.returncode and "accelerate owns this checkpoint" in refused.stderr
    stack.loom("stop", job)
    view = stack.wait_state(job, "stopped", "failed")
    assert view["state"] == "stopped" and saved(stack, job)[view["step"]]["newest"], "it saved before its end"


def test_one_callback_of_two_is_active_and_a_failing_one_costs_telemetry_only(
    stack: Stack, tmp_path: Path
) -> None:
    """The script adds LoomCallback itself, and the index of saves cannot be written."""
    needs("transformers")
    nowhere = tmp_path / "file"
    nowhere.write_text("not a directory")
    stack.env["LOOM_CHECKPOINT_DIR"] = str(nowhere)
    job = stack.submit(str(SCRIPTS / "own_callback.py"), str(tmp_path / "out"), workers=1)
    assert stack.wait_state(job, "completed", "failed")["state"] == "completed"
    told = log_of(stack, job)
    assert "active: 1 of 2" in told and "ended after step 8" in told
    assert steps(stack, job) == 8
