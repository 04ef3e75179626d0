"""Every steering command on one real job, believed only as far as the ranks' own logs of each step say so."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from stack import TOO_LATE, Stack, lines_of, wait_until

from torchloom.errors import Conflict, UsageError

Row = tuple[int, list[float], float, str]
"""Training step, the learning rates it was made with, dropout, a sum over the weights."""


def rows(out: Path, rank: int) -> list[Row]:
    found = []
    for line in lines_of(out / f"rank{rank}"):
        match = re.fullmatch(r"(\d+) \[(.*)\] (\S+) (\S+)", line)
        if match:
            rates = [float(word) for word in match[2].split(",") if word.strip()]
            found.append((int(match[1]), rates, float(match[3]), match[4]))
    return found


def steps_of(out: Path, rank: int) -> list[int]:
    return [step for step, *_ in rows(out, rank)]


def first(out: Path, rank: int, value: float) -> int:
    """The first step whose learning rates are all `value`."""
    return next(step for step, rates, _, _ in rows(out, rank) if set(rates) == {value})


def step_in(text: str) -> int:
    found = re.search(r"step (\d+)", text)
    assert found, text
    return int(found[1])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def job(stack: Stack, out: Path) -> str:
    name = stack.submit("steerable.py", str(out))
    stack.loom("wait", name, "--for", "step=20", "--timeout", "150s")
    return name


def made(out: Path, step: int) -> None:
    """Wait until both ranks have noted this step."""
    wait_until(lambda: all(rows(out, rank)[-1][0] >= step for rank in (0, 1)), f"step {step} is in the logs")


def alike(stack: Stack, job: str, out: Path) -> None:
    """Every step was made with the same values on both ranks, and led to the same weights."""
    if not stack.status(job)["ended"]:
        stack.loom("stop", job, "--kill")  # who is looked at later must not have made more steps by then
    one, other = rows(out, 0), rows(out, 1)
    count = min(len(one), len(other))
    assert one[:count] == other[:count] and abs(len(one) - len(other)) <= 1


def plan(stack: Stack, job: str, out: Path, lr: float) -> tuple[str, int] | None:
    """A change at a step to come, and that step; None if it is past by the time it is named."""
    later = rows(out, 0)[-1][0] + 150
    with stack.client() as client:
        try:
            return client.change(job, {"values": {"lr": lr}, "at_step": later})["operation"], later
        except (Conflict, UsageError) as error:
            assert "past" in str(error)
            return None


def test_settings_change_on_all_ranks_at_the_printed_step(stack: Stack, job: str, out: Path) -> None:
    wait_until(lambda: "dropout" in stack.loom("config", job).stdout, "its settings are known")
    dry = stack.loom("set", job, "lr=0.005", "--dry-run").stdout
    assert "→ 0.005" in dry
    assert not [one for one in stack.json("operations", job) if one["by"] != "policy"]
    said = stack.steer("set", job, "lr=0.005", "dropout=0.3", "--why", "a test").stdout
    step = step_in(said)
    assert "dropout" in said and "0.1 → 0.3" in said
    made(out, step + 3)
    assert first(out, 0, 0.005) == first(out, 1, 0.005) == step

    # One handler that fails on one rank: nothing changes anywhere, and the traceback is told.
    failed = wait_until(
        lambda: (
            (e := stack.loom("set", job, "lr=0.5", "dropout=0.66", check=5).stderr)
            and not TOO_LATE.search(e)
            and e
        ),
        "the ranks look at it",
    )
    assert "ValueError: rank 1 cannot do that" in failed and "Traceback" in failed
    assert stack.loom("set", job, "dropuot=0.5", check=2).stderr.endswith("did you mean dropout?\n")

    # A step that was named, and while it is waited for the control service is killed.
    planned, later = wait_until(lambda: plan(stack, job, out, 0.007), "a step to come")
    stack.wait_part_back("weaver", stack.kill_part("weaver"))
    wait_until(lambda: (stack.try_status(job) or {"step": 0})["step"] > later + 1, "that step is past")
    ended = wait_until(lambda: (o := stack.json("operations", job, planned))["ended"] and o, "an outcome")
    if ended["state"] == "applied":  # the service may have been away for too long
        assert ended["training_step"] == later == first(out, 0, 0.007) == first(out, 1, 0.007)
    else:
        assert not any(set(rates) == {0.007} for _, rates, _, _ in rows(out, 0))

    history = [one for one in stack.json("config", job, "--history") if one["state"] == "applied"]
    assert history[0]["step"] == step and history[0]["why"] == "a test" and history[0]["by"] == "admin"
    back = stack.steer("revert", job, "0").stdout
    assert "reverted on all ranks" in back and "0.3 → 0.1" in back
    made(out, step_in(back) + 2)
    last = rows(out, 0)[-1]
    assert last[2] == 0.1 and last[1][1] == pytest.approx(2 * last[1][0]), "the scheduler went on underneath"
    alike(stack, job, out)


def test_pause_save_go_back_and_end(stack: Stack, job: str, out: Path) -> None:
    paused = step_in(stack.steer("pause", job).stdout)
    assert "running, paused" in stack.loom("status", job).stdout
    made(out, paused - 1)
    assert [rows(out, rank)[-1][0] for rank in (0, 1)] == [paused - 1, paused - 1]
    stack.wait_part_back("weaver", stack.kill_part("weaver"))
    wait_until(lambda: stack.try_status(job).get("paused"), "the new service knows")
    stuck = ("hang", "communication-hang", "no-progress", "crash")
    assert not [i for i in stack.json("incidents", job) if i["kind"] in stuck], "a pause is no alarm"
    assert step_in(stack.steer("resume", job).stdout) == paused

    saved = json.loads(stack.steer("checkpoint", job, "--json").stdout)
    assert saved["whole"] and saved["size"] > 0
    pids = [worker["pid"] for worker in stack.status(job)["workers"]]
    stack.steer("set", job, "lr=0.005")
    refused = stack.loom("restore", job, "--step", str(saved["step"]), check=2).stderr
    assert "keep" in refused and "revert" in refused
    said = stack.steer("restore", job, "--step", str(saved["step"]), "--config", "revert").stdout
    assert "without a restart" in said
    found = stack.status(job)
    assert [worker["pid"] for worker in found["workers"]] == pids and found["generation"] == 1
    assert found["config_version"] == 0
    for rank in (0, 1):
        first_again = saved["step"] + 1
        wait_until(
            lambda r=rank, n=first_again: [s for s, *_ in rows(out, r)].count(n) > 1, "it makes it again"
        )
        steps = [step for step, *_ in rows(out, rank)]
        again = steps.index(first_again, steps.index(first_again) + 1)
        assert steps[again - 1] > saved["step"] and 0.005 not in rows(out, rank)[again][1]

    end = step_in(stack.steer("pause", job).stdout) + 20
    assert "is past" in stack.loom("set", job, "max_steps=1", check=2).stderr
    stack.steer("set", job, f"max_steps={end}")
    stack.steer("resume", job)
    assert "completed" in stack.loom("wait", job, "--timeout", "150s").stdout
    assert [rows(out, rank)[-1][0] for rank in (0, 1)] == [end, end]
    counted = [one["version"] for one in stack.json("config", job, "--history") if one["state"] == "applied"]
    assert counted == [1, 2], "a pause, a save and a restore are no version"
    assert stack.loom("pause", job, check=5).stderr.startswith("loom: ")
    alike(stack, job, out)


def test_a_paused_job_stays_paused_when_its_workers_die(stack: Stack, job: str, out: Path) -> None:
    paused = step_in(stack.steer("pause", job).stdout)
    made(out, paused - 1)
    before = {row[0]: row[3] for row in rows(out, 0)}
    os.kill(stack.worker_pid(job, 1), signal.SIGKILL)

    def stands() -> bool:
        found = stack.try_status(job) or {"generation": 0}
        return found["generation"] == 2 and {w["phase"] for w in found["workers"]} == {"paused"}

    wait_until(stands, "the new workers stand before their first step")
    assert "running, paused" in stack.loom("status", job).stdout
    count = len(rows(out, 0))
    stack.steer("set", job, "dropout=0.2")
    saved = json.loads(stack.steer("checkpoint", job, "--json").stdout)["step"]
    wait_until(stands, "they stand before the next step")
    assert saved <= paused and len(rows(out, 0)) == count + 1, "the step it stood in was made"
    assert "continues" in stack.steer("resume", job).stdout
    made(out, saved + 4)
    again = [row for row in rows(out, 0)[count:] if row[0] in before and row[0] <= saved]
    assert all(before[row[0]] == row[3] for row in again), "bit-identical to the time before"
    assert [i["kind"] for i in stack.faults(job)] == ["crash"], "a pause is no alarm"
    alike(stack, job, out)
