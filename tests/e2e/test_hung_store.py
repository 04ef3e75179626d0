"""An S3 server that accepts connections and answers nothing: the training makes its steps, and whoever asked
for a save is told why there is none."""

from __future__ import annotations

import time
from pathlib import Path

from gate_proxy import GateProxy
from s3 import S3Server
from stack import Stack, lines_of, wait_until


def made(notes: Path, rank: int) -> int:
    return sum(line.split()[1] == str(rank) for line in lines_of(notes))


def slowest(notes: Path) -> int:
    return min(made(notes, 0), made(notes, 1))


def test_a_store_that_hangs_stops_no_step_and_is_told_to_whoever_asked(
    stack: Stack, s3: S3Server, tmp_path: Path
) -> None:
    proxy = GateProxy(int(s3.environment["S3_ENDPOINT"].rpartition(":")[2]))
    endpoint = f"http://127.0.0.1:{proxy.port}"
    stack.env |= {**s3.environment, "S3_ENDPOINT": endpoint, "LOOM_STORE_TIMEOUT": "4"}
    notes = tmp_path / "notes"
    flags = ("--max-workers", "3")
    job = stack.submit("saves.py", str(notes), "hung", "--every", "1000000", flags=flags)
    try:
        wait_until(lambda: slowest(notes) >= 30, "30 steps")
        first = stack.steer("checkpoint", job)
        assert "is committed" in first.stdout
        began, at = time.monotonic(), slowest(notes)
        wait_until(lambda: slowest(notes) >= at + 60, "60 steps with a store that answers")
        healthy = (slowest(notes) - at) / (time.monotonic() - began)

        proxy.shut(silently=True)
        began, at = time.monotonic(), slowest(notes)
        refused = stack.loom("checkpoint", job, check=None)
        hung = (slowest(notes) - at) / (time.monotonic() - began)
        assert hung > healthy / 4, f"{hung:.1f} steps/s instead of {healthy:.1f}"
        assert refused.returncode != 0 and "could not save" in refused.stderr, refused
        assert "it keeps training" in refused.stderr

        at = slowest(notes)
        scaled = stack.loom("scale", job, "3", check=None)
        assert scaled.returncode != 0 and "sav" in scaled.stderr, f"said before anything is stopped: {scaled}"
        wait_until(lambda: slowest(notes) > at + 30, "it trains on with as many workers as before")
        status = stack.status(job)
        assert (status["state"], status["generation"], status["world_size"]) == ("running", 1, 2)
        assert {incident["kind"] for incident in stack.faults(job)} == {"checkpoint-failed"}

        proxy.open()
        wait_until(
            lambda: stack.loom("checkpoint", job, check=None).returncode == 0, "saving goes well again"
        )
        failing = [i for i in stack.json("incidents", job) if i["kind"] == "checkpoint-failed"]
        assert not any(incident["open"] for incident in failing)
    finally:
        proxy.close()
