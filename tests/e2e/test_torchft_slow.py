"""A slow replica of a torchft job is left out by policy, tried again, and taken back; no process changes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from replica_runs import Replicas, check_data, check_one_history, made_steps, started
from stack import SCRIPTS, Stack, wait_until

POLICY = """
cooldown_s = 0
take_back_s = 2
[rules.replica-slow]
likely = "leave-out"
"""
FAST_S, SLOW_S = 0.05, 0.4


def incident(job: Replicas, index: int) -> dict[str, Any]:
    found = [one for one in job.stack.json("incidents", job.jobs[index]) if one["kind"] == "replica-slow"]
    return found[-1] if found else {}


def step_s(job: Replicas, index: int, since: int, replicas: int) -> float:
    """The median time from step to step, of steps after this one that were made by so many."""
    counts = dict(job.steps(index))
    times = [(at, step) for at, step, _ in made_steps(job, index) if step > since]
    # The script has perhaps made steps since the counts were read: those are not looked at.
    taken = [
        b - a for (a, one), (b, two) in pairwise(times) if counts.get(one) == counts.get(two) == replicas
    ]
    return median(taken) / 1e9


def test_a_replica_that_costs_more_than_it_gives_is_left_out_and_taken_back(
    stack: Stack, tmp_path: Path
) -> None:
    stack.env["PYTHONPATH"] = ""
    policy, pace = tmp_path / "policy.toml", tmp_path / "pace"
    policy.write_text(POLICY)
    pace.mkdir()

    def takes(replica: int, seconds: float) -> None:
        (pace / f".{replica}").write_text(str(seconds))
        (pace / f".{replica}").replace(pace / str(replica))

    for replica in range(3):
        takes(replica, FAST_S)
    flags = ("--policy", str(policy), "--env", f"PACE={pace}", "--env", "LEAST=1")
    job = started(stack, "ft-slow", size=3, steps=1_000_000, script=SCRIPTS / "torchft_exact.py", flags=flags)
    pids = [job.pid(index) for index in range(3)]

    began = job.steps(2)[-1][0]
    takes(2, SLOW_S)
    job.wait_steps(12, 2, (0, 1))
    wait_until(lambda: "their steps went from" in incident(job, 2).get("decision", ""), "what it gained")
    told = incident(job, 2)
    assert (
        "left out of the quorum; the other 2" in told["decision"]
        and "for its own part of a step" in told["verdict"]
    )
    assert "left out of the quorum because it is slow" in stack.status(job.jobs[2])["reason"]
    alone_s, all_s = (step_s(job, 0, began + 1, replicas) for replicas in (2, 3))
    assert alone_s < 0.6 * all_s, "the others are faster without it"

    takes(2, FAST_S)
    wait_until(lambda: not incident(job, 2)["open"], "it is taken back")
    job.wait_steps(3, 3, (0, 1, 2))
    assert "taken back after" in incident(job, 2)["decision"], incident(job, 2)
    assert [job.pid(index) for index in range(3)] == pids, "nobody was restarted"
    job.end_together()
    check_one_history(job)
    check_data(job)
    assert len(job.weights()) == 1
