"""`loom inject` on a real job: the fault happens, to the rank that was named, and only an admin may."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from stack import Stack, lines_of, wait_until


class Job:
    """A running job of 2 workers that notes its steps, and when they were over. Nobody ends a rank of it only
    because it hangs."""

    def __init__(self, stack: Stack, work: Path) -> None:
        self.stack, self.notes = stack, work / "notes"
        (work / "policy.toml").write_text('[rules.hang]\ncertain = "report"\n')
        flags = ("--policy", str(work / "policy.toml"))
        self.name = stack.submit("train.py", str(self.notes), "--clock", flags=flags)
        stack.wait_state(self.name, "running")
        self.wait_steps(30)

    def steps(self) -> list[list[str]]:
        return [line.split() for line in lines_of(self.notes)]

    def wait_steps(self, more: int) -> None:
        there = len(self.steps())
        wait_until(lambda: len(self.steps()) >= there + 2 * more, f"{more} more steps of both ranks")

    def pids(self) -> set[str]:
        return {step[0] for step in self.steps()}

    def pid(self, rank: int) -> int:
        return self.stack.worker_pid(self.name, rank)

    def inject(self, *args: str) -> None:
        self.stack.loom("inject", self.name, *args)

    def crash(self) -> Any:
        """What is told of a rank that ended."""
        return wait_until(lambda: self.stack.faults(self.name), "an incident")[0]

    def between(self) -> list[float]:
        """Seconds between the ends of two steps of rank 0."""
        ends = [float(when) for _, rank, _, when in self.steps() if rank == "0"]
        return [after - before for before, after in pairwise(ends)]


@pytest.fixture
def job(stack: Stack, tmp_path: Path) -> Job:
    return Job(stack, tmp_path)


def test_an_exit_code_is_the_one_that_was_asked_for(job: Job) -> None:
    job.inject("exit", "--rank", "1", "--amount", "23")
    wait_until(lambda: len(job.pids()) >= 4, "new processes step")
    incident = job.crash()
    assert incident["culprit"] == 1
    assert "23" in incident["verdict"]


def test_a_hang_with_an_end_stops_the_steps_and_costs_no_restart(job: Job) -> None:
    job.inject("hang", "--rank", "0", "--for", "4s")
    wait_until(lambda: max(job.between()) >= 4.0, "nobody steps for so long")
    job.wait_steps(20)
    assert len(job.pids()) == 2


def test_a_slow_rank_makes_the_job_slower_while_it_lasts(job: Job) -> None:
    before = min(job.between())  # the fastest step is one that the machine had time for
    job.inject("slow", "--rank", "1", "--amount", "6")
    wait_until(lambda: min(job.between()[-15:]) > 2 * before, f"more than twice {before:.3f} s for all steps")


def test_a_stopped_process_is_stopped(job: Job) -> None:
    pid = job.pid(1)
    job.inject("stop", "--rank", "1", "--for", "600s")
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "rank 1 is stopped")


def test_only_an_admin_may_and_a_wrong_name_is_explained(job: Job) -> None:
    made = job.stack.loom("token", "create", "oncall", "--role", "operator").stdout.strip()
    job.stack.env["LOOM_TOKEN"] = made
    refused = job.stack.loom("inject", job.name, "kill", "--rank", "1", check=4)
    assert "admin" in refused.stderr
    job.stack.loom("stop", job.name)  # an operator may do that
    del job.stack.env["LOOM_TOKEN"]
    wrong = job.stack.loom("inject", job.name, "kil", check=2)
    assert "did you mean kill" in wrong.stderr


def test_a_device_that_fails_ends_the_rank_with_its_words(job: Job) -> None:
    job.inject("device-error", "--rank", "1")
    incident = job.crash()
    assert incident["culprit"] == 1 and "uncorrectable ECC error" in incident["verdict"]


def test_parts_of_the_control_plane_are_killed_and_training_does_not_notice(job: Job) -> None:
    for part in ("agent", "weaver", "nats"):
        before = job.stack.part_pid(part)
        job.inject(f"{part}-kill", "--rank", "0")
        wait_until(
            lambda p=part, b=before: job.stack.try_part_pid(p) not in (0, b),  # type: ignore[misc]
            f"another {part}",
        )
        wait_until(lambda: job.stack.try_status(job.name), "it answers")
        job.wait_steps(20)
    # A part that takes its time to come back may be told of as a silent node, and nothing may follow from it.
    assert len(job.pids()) == 2 and job.stack.status(job.name)["restarts"] == 0
