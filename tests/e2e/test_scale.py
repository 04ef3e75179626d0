"""`loom scale` and `loom node` on a real stack with real workers."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from stack import Stack, wait_until


def test_a_training_job_gets_more_workers_and_a_node_that_is_heard_is_not_gone(
    stack: Stack, tmp_path: Path
) -> None:
    job = stack.submit("train.py", str(tmp_path / "notes"), flags=("--max-workers", "3", "--standby", "1"))
    stack.wait_state(job, "running")
    wait_until(lambda: stack.status(job)["step"] >= 20, "20 steps")
    done = stack.loom("scale", job, "3")
    assert f"{job} runs with 3 workers" in done.stdout
    assert "no save before scaling" in done.stderr, "the script has no loom.Checkpoint"
    wait_until(lambda: stack.status(job)["step"] >= 5, "it trains")
    found = stack.status(job)
    assert (found["world_size"], found["generation"], found["restarts"]) == (3, 2, 0)
    assert {worker["rank"] for worker in found["workers"]} == {0, 1, 2} and not stack.faults(job)
    assert found["spares"] == [], "there is no other node"
    assert "0 of 1: no other node has room for it" in stack.loom("status", job).stdout
    refused = stack.loom("scale", job, "4", check=5)
    assert "2 to 3 workers" in refused.stderr
    (node,) = stack.json("nodes")
    refused = stack.loom("node", "gone", node["id"], check=5)
    assert "a host that is reachable is not gone" in refused.stderr
    stack.loom("node", "gone", "nowhere", check=3)


def test_what_was_trained_is_saved_before_a_job_gets_more_workers(stack: Stack) -> None:
    stack.env |= {"CHECKPOINT_EVERY": "100000", "MAX_STEPS": "100000", "SLEEP_SEC": "0.02"}
    example = ("--max-workers", "3", "-m", "torchloom.examples.char_gpt")
    job = stack.loom("submit", "--nproc-per-node", "2", *example).stdout.split()[-1]
    for workers in itertools.cycle(("3", "2")):
        wait_until(lambda: stack.status(job)["step"] >= 20, "20 steps")
        before = stack.status(job)["step"]
        done = stack.loom("scale", job, workers, check=None, timeout=480)
        if done.returncode == 0:
            break
        # The machine had no time for the ranks to agree on the save: nothing was stopped.
        assert stack.status(job)["generation"] == 1, done.stderr
    assert "no save" not in done.stderr, done.stderr

    def resumed() -> list[str]:
        """Steps, oldest first. What a worker prints is there a moment after it runs."""
        return re.findall(r"resumed after step (\d+) from", stack.loom("logs", job).stdout)

    restored = wait_until(resumed, "it resumes from a checkpoint")
    assert int(restored[-1]) >= before
