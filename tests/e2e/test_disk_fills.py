"""The disk of the home fills while a job trains, a rank dies meanwhile, and the disk has room again.

Training continues, requests fail with a sentence, the trouble is an incident that ends by itself, the rank is
restarted, nothing that was acknowledged is lost, and what is missing in the logs is said.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disks import fill, small_disk
from stack import HANG_S, TIMED_OUT, Stack, lines_of, wait_until

from torchloom.errors import LoomError

FULL_S = 10.0


@pytest.fixture
def disk() -> Iterator[Path]:
    with (
        tempfile.TemporaryDirectory(prefix="loom-full-") as root,
        small_disk(Path(root) / "small", megabytes=64) as place,
    ):
        yield place


def of_control(stack: Stack) -> list[dict[str, Any]]:
    with stack.client() as client:
        return [dict(one) for one in client.incidents() if not one["job"]]


def test_training_goes_on_and_control_recovers_by_itself(disk: Path, tmp_path: Path) -> None:
    stack = Stack(disk / "home")
    notes, end, ballast = tmp_path / "notes", tmp_path / "end", disk / "ballast"

    def steps(rank: int) -> int:
        return sum(line.split()[1] == f"{rank}" for line in lines_of(notes))

    try:
        stack.up()
        job = stack.submit("talks.py", str(notes), str(end))
        wait_until(lambda: steps(0) > 5 and steps(1) > 5, "it trains")
        stack.steer("set", job, "lr=0.05")
        acknowledged = wait_until(lambda: stack.status(job)["config_version"], "the ranks' pulses say so")

        began = 0.0

        def is_full() -> bool:
            nonlocal began
            fill(disk)
            found = of_control(stack)
            began = began or (time.monotonic() if found else 0.0)
            return bool(found) and time.monotonic() - began > FULL_S

        wait_until(is_full, "the trouble is an incident")
        lasting = of_control(stack)[-1]
        assert lasting["open"] and lasting["kind"] == "control-plane"
        assert "control-plane" in stack.loom("incident", lasting["id"]).stdout
        assert lasting["id"] in stack.loom("incidents").stdout
        before = steps(0), steps(1)
        wait_until(lambda: steps(0) > before[0] + 5 and steps(1) > before[1] + 5, "it trains on")

        fill(disk)
        refused = stack.loom("set", job, "lr=0.01", check=None, timeout=HANG_S)
        assert refused.returncode == TIMED_OUT and "The control plane cannot act now" in refused.stderr
        assert "Traceback" not in refused.stderr
        stopped = stack.loom("stop", job, check=None, timeout=HANG_S)
        assert stopped.returncode == TIMED_OUT and "nothing was changed" in stopped.stderr
        submitted = []
        for number in range(2):
            with stack.client() as client:
                try:
                    body = {"name": f"in-between-{number}", "command": ["true"]}
                    submitted.append(client.submit(body)["id"])
                except LoomError as error:
                    assert str(error)
        os.kill(stack.worker_pid(job, 1), signal.SIGKILL)
        fill(disk)
        time.sleep(0.5)  # long enough for its end to be noticed while nothing can be stored
        ballast.unlink()

        wait_until(
            lambda: (s := stack.try_status(job)) and s["generation"] >= 2 and s["state"] == "running",
            "the rank is restarted",
        )
        restarted = {w["pid"] for w in stack.status(job)["workers"]}
        wait_until(
            lambda: restarted & {int(note.split()[0]) for note in lines_of(notes)[-4:]}, "it trains again"
        )

        def is_over() -> bool:
            found = of_control(stack)
            return bool(found) and not any(one["open"] for one in found)

        wait_until(is_over, "the incident ends by itself")
        over = of_control(stack)[-1]
        assert over["id"] == lasting["id"] and "recovered by itself after" in over["resolution"]

        def is_well() -> bool:
            with stack.client() as client:
                health = client.health()
            return health["status"] == "ok" and not health["troubles"]

        wait_until(is_well, "nothing is wrong any more")
        wait_until(
            lambda: stack.status(job)["config_version"] >= acknowledged,
            "what was acknowledged is still there",
        )
        names = {one["id"] for one in stack.json("ps")}
        assert set(submitted) <= names

        end.touch()
        stack.wait_state(job, "completed")
        said = stack.loom("status", job).stdout
        assert "of rank 0 are missing: there was no room on the disk" in said
        shown = stack.loom("logs", job, "--tail", "100000")
        text = shown.stdout + shown.stderr
        assert "are missing here: there was no room on the disk" in text or "are missing: there was" in text
        printed = {note.split()[0]: 0 for note in lines_of(notes)}
        for note in lines_of(notes):
            printed[note.split()[0]] += 1
        workers = {w["rank"]: w for w in stack.status(job)["workers"]}
        lost = sum(w["log_lost_lines"] for w in workers.values())
        logged = text.count(" says ")
        assert lost > 0 and logged + lost >= sum(printed.values()) - 4, "what is not there is counted"
    finally:
        ballast.unlink(missing_ok=True)
        stack.end()
