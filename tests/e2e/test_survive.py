"""Real workers on gloo, real NATS, real kills: training survives, the state is right, nothing is left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from stack import HANG_S, Stack, lines_of, wait_until


class Steps:
    """What the workers themselves noted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[tuple[int, int, int]]:
        lines = [line.split() for line in lines_of(self.path)]
        return [(int(f[0]), int(f[1]), int(f[2])) for f in lines if len(f) == 3]

    def pids(self) -> set[int]:
        return {pid for pid, _, _ in self.read()}

    def wait_more(self, more: int = 20, timeout_s: float = HANG_S) -> None:
        """Wait until every rank has completed `more` further steps."""
        before = {rank: sum(r == rank for _, r, _ in self.read()) for rank in (0, 1)}
        wait_until(
            lambda: all(sum(r == rank for _, r, _ in self.read()) >= n + more for rank, n in before.items()),
            f"{more} more steps on every rank",
            timeout_s,
        )


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path / "notes")


def started(stack: Stack, steps: Steps, *args: str) -> str:
    job = stack.submit("train.py", str(steps.path), *args)
    stack.wait_state(job, "running")
    steps.wait_more(25)
    return job


def worker_pids(status: dict[str, Any]) -> dict[int, int]:
    return {w["rank"]: w["pid"] for w in status["workers"]}


def test_a_killed_worker_is_seen_named_and_the_job_goes_on(stack: Stack, steps: Steps) -> None:
    job = started(stack, steps)
    before = worker_pids(stack.status(job))
    os.kill(before[1], signal.SIGKILL)
    wait_until(lambda: len(steps.pids()) >= 4, "two new processes step")
    after = stack.wait_state(job, "running")
    assert after["restarts"] == 1 and after["generation"] == 2
    assert set(worker_pids(after).values()).isdisjoint(before.values())
    incident = wait_until(
        lambda: next((i for i in stack.faults(job) if i["recovery_s"]), None), "a closed incident"
    )
    assert incident["culprit"] == 1 and "SIGKILL" in incident["verdict"]
    line = incident["timeline"]
    order = [line[k] for k in ("fault_ns", "decided_ns", "stopped_ns", "spawned_ns", "first_step_ns")]
    assert order == sorted(order) and order[0] > 0
    detail = stack.json("incident", incident["id"])
    culprit = next(e for e in detail["exits"] if e["rank"] == 1)
    assert culprit["signal"] == 9 and culprit["activity"] and culprit["steps"] >= 20
    stack.loom("stop", job)
    assert stack.status(job)["state"] == "stopped"


def test_an_exception_is_the_culprit_and_its_peer_is_secondary(stack: Stack, steps: Steps) -> None:
    job = stack.submit("train.py", str(steps.path), "--crash-at", "5", flags=("--max-restarts", "0"))
    status = stack.wait_state(job, "failed")
    assert "rank 1" in status["reason"] and "flux capacitor" in status["reason"]
    (incident,) = stack.faults(job)
    assert incident["culprit"] == 1
    detail = stack.json("incident", incident["id"])
    by_rank = {e["rank"]: e for e in detail["exits"]}
    assert "the flux capacitor is empty" in by_rank[1]["traceback"]
    assert by_rank[0]["secondary"] or by_rank[0]["after_stop"]
    assert any("flux capacitor" in line for line in by_rank[1]["log_tail"])


def test_a_script_that_always_crashes_fails_with_the_reason_and_never_loops(
    stack: Stack, steps: Steps
) -> None:
    job = stack.submit("train.py", str(steps.path), "--crash-at", "1", "--crash-how", "exit")
    status = stack.wait_state(job, "failed")
    assert "code 17" in status["reason"] and "no progress" in status["reason"]
    assert status["restarts"] == 3
    log = stack.loom("logs", job).stdout
    assert log.count("hello from rank 1") == 4


def test_a_job_that_ends_well_is_completed(stack: Stack, steps: Steps) -> None:
    job = stack.submit("train.py", str(steps.path), "--steps", "30")
    status = stack.wait_state(job, "completed")
    assert status["restarts"] == 0
    assert {(rank, step) for _, rank, step in steps.read()} == {(r, s) for r in (0, 1) for s in range(1, 31)}


@pytest.mark.parametrize("part", ["weaver", "agent", "spawner", "nats", "supervisor"])
def test_workers_train_through_the_death_of_a_part(stack: Stack, steps: Steps, part: str) -> None:
    job = started(stack, steps)
    before = worker_pids(stack.status(job))
    killed = stack.kill_part(part)
    steps.wait_more(20)
    if part == "supervisor":
        stack.up()
    stack.wait_part_back(part, killed)
    after = stack.wait_state(job, "running")
    assert worker_pids(after) == before, "no healthy worker was touched"
    assert after["restarts"] == 0 and stack.faults(job) == []
    steps.wait_more(10)
    assert steps.pids() == set(before.values()), "nothing was started twice"
    wait_until(lambda: stack.status(job)["workers"][0]["steps"] >= 50, "the state follows the steps again")
    # and the job can still be recovered and stopped
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: len(steps.pids()) >= 4, "recovered after the part came back")
    stack.wait_state(job, "running")
    stack.loom("stop", job)
    assert stack.status(job)["state"] == "stopped"


def test_everything_but_the_workers_dies_at_once_and_comes_back(stack: Stack, steps: Steps) -> None:
    job = started(stack, steps)
    before = worker_pids(stack.status(job))
    for part in ("supervisor", "weaver", "agent", "nats", "spawner"):
        stack.kill_part(part)
    steps.wait_more(20)
    stack.up()
    after = stack.wait_state(job, "running")
    assert worker_pids(after) == before and after["restarts"] == 0
    steps.wait_more(10)
    assert steps.pids() == set(before.values())
    stack.loom("stop", job)


def test_a_worker_that_dies_while_nobody_looks_is_recovered_later(stack: Stack, steps: Steps) -> None:
    job = started(stack, steps)
    before = worker_pids(stack.status(job))
    for part in ("supervisor", "weaver", "agent", "nats"):
        stack.kill_part(part)
    os.kill(before[1], signal.SIGKILL)
    time.sleep(0.3)
    stack.up()
    wait_until(lambda: len(steps.pids()) >= 4, "both ranks are started anew")
    after = stack.wait_state(job, "running")
    assert after["restarts"] == 1
    (incident,) = stack.faults(job)
    assert incident["culprit"] == 1, incident
    stack.loom("stop", job)


def test_jobs_and_history_are_there_after_down_and_up(stack: Stack, steps: Steps) -> None:
    job = stack.submit("train.py", str(steps.path), "--steps", "20")
    stack.wait_state(job, "completed")
    stack.loom("down")
    stack.wait_nothing_left()
    stack.up()
    assert stack.wait_state(job, "completed")["generation"] == 1
    assert "hello from rank 0" in stack.loom("logs", job).stdout


def test_keep_jobs_hands_the_workers_to_the_next_up(stack: Stack, steps: Steps) -> None:
    job = started(stack, steps)
    before = worker_pids(stack.status(job))
    assert stack.loom("down", check=5).stderr.strip(), "with a running job `down` asks what is meant"
    stack.loom("down", "--keep-jobs")
    steps.wait_more(10)
    stack.up()
    assert worker_pids(stack.wait_state(job, "running")) == before
    stack.loom("stop", job)


def test_devices_show_both_directions_and_go_with_their_workers(stack: Stack, steps: Steps) -> None:
    job = started(stack, steps)
    wait_until(lambda: job in str(stack.json("devices")), "its workers are shown there")
    stack.loom("stop", job)
    wait_until(lambda: job not in str(stack.json("devices")), "entries go with their workers")


def test_two_jobs_at_once_are_not_confused(stack: Stack, tmp_path: Path) -> None:
    first, second = Steps(tmp_path / "a"), Steps(tmp_path / "b")
    one = started(stack, first)
    two = started(stack, second)
    pids = worker_pids(stack.status(one))
    os.kill(stack.worker_pid(two, 0), signal.SIGKILL)
    wait_until(lambda: len(second.pids()) >= 4, "the second recovers")
    assert worker_pids(stack.status(one)) == pids and stack.status(one)["restarts"] == 0
    for job in (one, two):
        stack.loom("stop", job)
