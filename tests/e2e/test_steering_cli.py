"""Every steering command on one real job, believed only as far as the ranks' own logs of each step say so."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from stack import Stack, wait_until

Row = tuple[int, list[float], float, str]
"""Training step, the learning rates it was made with, dropout, a sum over the weights."""


def rows(out: Path, rank: int) -> list[Row]:
    found = []
    for line in (out / f"rank{rank}").read_text().splitlines():
        match = re.fullmatch(r"(\d+) \[(.*)\] (\S+) (\S+)", line)
        if match:
            rates = [float(word) for word in match[2].split(",") if word.strip()]
            found.append((int(match[1]), rates, float(match[3]), match[4]))
    return found


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


def alike(out: Path) -> None:
    """Every step was made with the same values on both ranks, and led to the same weights."""
    one, other = rows(out, 0), rows(out, 1)
    count = min(len(one), len(other))
    assert one[:count] == other[:count] and abs(len(one) - len(other)) <= 1


def test_settings_change_on_all_ranks_at_the_printed_step(stack: Stack, job: str, out: Path) -> None:
    assert "dropout" in stack.loom("config", job).stdout
    dry = stack.loom("set", job, "lr=0.005", "--dry-run").stdout
    assert "→ 0.005" in dry and stack.json("operations", job) == []
    said = stack.loom("set", job, "lr=0.005", "dropout=0.3", "--why", "a test").stdout
    step = step_in(said)
    assert "dropout" in said and "0.1 → 0.3" in said
    wait_until(lambda: rows(out, 0)[-1][0] > step + 2 and rows(out, 1)[-1][0] > step + 2, "steps after it")
    assert first(out, 0, 0.005) == first(out, 1, 0.005) == step

    # One handler that fails on one rank: nothing changes anywhere, and the traceback is told.
    failed = stack.loom("set", job, "lr=0.5", "dropout=0.66", check=5)
    assert "ValueError: rank 1 cannot do that" in failed.stderr and "Traceback" in failed.stderr
    assert stack.loom("set", job, "dropuot=0.5", check=2).stderr.endswith("did you mean dropout?\n")

    # A step that was named, and while it is waited for the control service is killed.
    later = rows(out, 0)[-1][0] + 150
    with stack.client() as client:  # at once: 150 steps last three seconds
        planned = client.change(job, {"values": {"lr": 0.007}, "at_step": later})["operation"]
    stack.wait_part_back("weaver", stack.kill_part("weaver"))
    wait_until(lambda: (stack.try_status(job) or {"step": 0})["step"] > later + 1, "that step is past")
    ended = wait_until(lambda: (o := stack.json("operations", job, planned))["ended"] and o, "an outcome")
    if ended["state"] == "applied":  # the service may have been away for too long
        assert ended["training_step"] == later == first(out, 0, 0.007) == first(out, 1, 0.007)
    else:
        assert not any(set(rates) == {0.007} for _, rates, _, _ in rows(out, 0))

    history = stack.json("config", job, "--history")
    assert history[0]["step"] == step and history[0]["why"] == "a test" and history[0]["by"] == "admin"
    back = stack.loom("revert", job, "0").stdout
    assert "taken back on all ranks" in back and "0.3 → 0.1" in back
    wait_until(lambda: rows(out, 0)[-1][0] > step_in(back) + 1, "steps with the script's own values")
    last = rows(out, 0)[-1]
    assert last[2] == 0.1 and last[1][1] == pytest.approx(2 * last[1][0]), "the scheduler went on underneath"
    alike(out)


def test_pause_save_go_back_and_end(stack: Stack, job: str, out: Path) -> None:
    paused = step_in(stack.loom("pause", job).stdout)
    assert "running, paused" in stack.loom("status", job).stdout
    assert [rows(out, rank)[-1][0] for rank in (0, 1)] == [paused - 1, paused - 1]
    stack.wait_part_back("weaver", stack.kill_part("weaver"))
    wait_until(lambda: stack.try_status(job).get("paused"), "the new service knows")
    stuck = ("hang", "communication-hang", "no-progress", "crash")
    assert not [i for i in stack.json("incidents", job) if i["kind"] in stuck], "a pause is no alarm"
    assert step_in(stack.loom("resume", job).stdout) == paused

    saved = stack.json("checkpoint", job)
    assert saved["whole"] and saved["size"] > 0
    pids = [worker["pid"] for worker in stack.status(job)["workers"]]
    stack.loom("set", job, "lr=0.005")
    refused = stack.loom("restore", job, "--step", str(saved["step"]), check=2).stderr
    assert "keep" in refused and "revert" in refused
    said = stack.loom("restore", job, "--step", str(saved["step"]), "--config", "revert").stdout
    assert "without a restart" in said
    found = stack.status(job)
    assert [worker["pid"] for worker in found["workers"]] == pids and found["generation"] == 1
    assert found["config_version"] == 0
    for rank in (0, 1):
        steps = [step for step, *_ in rows(out, rank)]
        again = steps.index(saved["step"] + 1, steps.index(saved["step"] + 1) + 1)
        assert steps[again - 1] > saved["step"] and 0.005 not in rows(out, rank)[again][1]

    end = step_in(stack.loom("pause", job).stdout) + 20
    assert "is past" in stack.loom("set", job, "max_steps=1", check=2).stderr
    stack.loom("set", job, f"max_steps={end}")
    stack.loom("resume", job)
    assert "completed" in stack.loom("wait", job, "--timeout", "150s").stdout
    assert [rows(out, rank)[-1][0] for rank in (0, 1)] == [end, end]
    assert stack.loom("pause", job, check=5).stderr.startswith("loom: ")
    alike(out)


def test_a_paused_job_stays_paused_when_its_workers_die(stack: Stack, job: str, out: Path) -> None:
    paused = step_in(stack.loom("pause", job).stdout)
    wait_until(lambda: rows(out, 0)[-1][0] == paused - 1, "all steps before it are in the log")
    before = {row[0]: row[3] for row in rows(out, 0)}
    os.kill(stack.status(job)["workers"][1]["pid"], signal.SIGKILL)

    def stands() -> bool:
        found = stack.try_status(job) or {"generation": 0}
        return found["generation"] == 2 and {w["phase"] for w in found["workers"]} == {"paused"}

    wait_until(stands, "the new workers stand before their first step")
    assert "running, paused" in stack.loom("status", job).stdout
    made = len(rows(out, 0))
    stack.loom("set", job, "dropout=0.2")
    saved = stack.json("checkpoint", job)["step"]
    wait_until(stands, "they stand before the next step")
    assert saved <= paused and len(rows(out, 0)) == made + 1, "the step it stood in was made"
    assert "goes on" in stack.loom("resume", job).stdout
    wait_until(lambda: rows(out, 0)[-1][0] > saved + 3, "it goes on")
    again = [row for row in rows(out, 0)[made:] if row[0] in before and row[0] <= saved]
    assert all(before[row[0]] == row[3] for row in again), "bit-identical to the time before"
    alike(out)
    told = [i["kind"] for i in stack.json("incidents", job) if i["kind"] != "node-lost"]
    assert told == ["crash"], "a pause is no alarm"
