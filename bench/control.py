"""Changes of a running job: how long until they are in force on all ranks, and whether on all at one step.

    python bench/control.py [--changes N] [--only NAME] [--kills N] [--json]

A real `loom up`, real DDP workers on gloo. A change takes from the PATCH to the end of the first step that
used it on the slowest rank, by the workers' own logs. `burst` asks for ten a second. With --kills the weaver,
the agent or NATS is killed at random moments, and every outcome that was told is compared with what the ranks
noted.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from support.launchers import BIN, WORKLOADS
from support.table import emit, progress
from torchloom.client import Client, Endpoint
from torchloom.errors import LoomError
from torchloom.home import Home

SHAPES = {"2 workers, 5 ms": (2, 5.0), "2 workers, 50 ms": (2, 50.0), "8 workers, 50 ms": (8, 50.0)}
BURST = "burst"
PARTS = ("weaver", "agent", "nats")


class Cluster:
    """`loom up` in a home of its own, with one job."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="loom-bench-"))
        self.home = Home(self.root / "home")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("LOOM_")}
        self.env |= {"LOOM_HOME": str(self.home.root), "NO_COLOR": "1"}

    def loom(self, *args: str) -> str:
        done = subprocess.run([str(BIN / "loom"), *args], env=self.env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"loom {' '.join(args)} failed: {done.stderr}")
        return done.stdout

    def kill(self, part: str) -> None:
        pid = int(json.loads((self.home.parts_dir / f"{part}.json").read_bytes())["pid"])
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def cpu_s(self, part: str) -> float:
        try:
            pid = int(json.loads((self.home.parts_dir / f"{part}.json").read_bytes())["pid"])
            used = psutil.Process(pid).cpu_times()
        except (OSError, ValueError, psutil.Error):
            return 0.0
        return float(used.user + used.system)


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    try:
        made.loom("up", "--port", "0")
        yield made
    finally:
        subprocess.run([str(BIN / "loom"), "down", "--stop-jobs"], env=made.env, capture_output=True)
        shutil.rmtree(made.root, ignore_errors=True)


class Job:
    """One job under way, its notes, and changes of it."""

    def __init__(self, cluster: Cluster, workers: int, step_ms: float) -> None:
        self.workers = workers
        self.notes = cluster.root / "notes"
        self.notes.mkdir()
        script = str(WORKLOADS / "steered.py")
        flags = ("--nproc-per-node", str(workers), script, str(self.notes), "--step-ms", str(step_ms))
        self.name = cluster.loom("submit", *flags).split()[-1]
        self.client = Client(Endpoint.find(cluster.home))
        while self.count() < 40 * workers:
            time.sleep(0.1)

    def rows(self) -> Iterator[tuple[int, int, float, int]]:
        for path in self.notes.iterdir():
            for line in path.read_text().splitlines():
                fields = line.split()
                if len(fields) == 4:
                    yield int(fields[0]), int(fields[1]), float(fields[2]), int(fields[3])

    def count(self) -> int:
        return sum(1 for _ in self.rows())

    def ask(self, value: float) -> str:
        body: Any = {"values": {"lr": value}}
        while True:
            try:
                return self.client.change(self.name, body, idempotency_key=f"{value}")["operation"]
            except LoomError:
                time.sleep(0.05)

    def outcome(self, operation: str) -> dict[str, Any]:
        while True:
            try:
                found: Any = self.client.operation(self.name, operation, wait_s=10.0)
                if found["ended"]:
                    return dict(found)
            except LoomError:
                time.sleep(0.05)

    def first_use(self) -> dict[float, dict[int, tuple[int, int]]]:
        """By value and rank: the first step that used it, and when that step was done."""
        found: dict[float, dict[int, tuple[int, int]]] = {}
        for rank, step, value, at_ns in sorted(self.rows(), key=lambda row: row[1]):
            found.setdefault(value, {}).setdefault(rank, (step, at_ns))
        return found


def agree(job: Job, told: dict[float, dict[str, Any]], merged: bool) -> int:
    """How many outcomes contradict what the ranks noted."""
    used, wrong = job.first_use(), 0
    for value, outcome in told.items():
        ranks = used.get(value, {})
        steps = {step for step, _ in ranks.values()}
        if outcome["state"] == "applied":
            there = len(ranks) == job.workers and steps == {outcome["at_step"]}
            wrong += not (there or (merged and not ranks))
        else:
            wrong += outcome["state"] != "not applied" or bool(ranks)
    return wrong


def measure(name: str, changes: int) -> dict[str, object]:
    workers, step_ms = SHAPES[name]
    with cluster() as made:
        job = Job(made, workers, step_ms)
        asked: dict[float, int] = {}
        told: dict[float, dict[str, Any]] = {}
        for number in range(changes):
            value = 0.2 + number / 10_000
            time.sleep(random.uniform(0.0, 0.1))
            asked[value] = time.monotonic_ns()
            told[value] = job.outcome(job.ask(value))
        time.sleep(2 * step_ms / 1000 + 0.1)
        used, real_ms = job.first_use(), _step_ms(job)
        took = sorted(
            (max(at for _, at in used[value].values()) - asked[value]) / 1e6
            for value in told
            if told[value]["state"] == "applied"
        )
        return {
            "what": name,
            "n": len(took),
            "not applied": sum(o["state"] != "applied" for o in told.values()),
            "contradicted": agree(job, told, merged=False),
            "step_ms": round(real_ms, 1),
            "median_ms": round(took[len(took) // 2]),
            "p99_ms": round(took[min(len(took) - 1, int(0.99 * len(took)))]),
            "worst_ms": round(took[-1]),
            "goal_ms": round(3 * real_ms + 100),
        }


def _step_ms(job: Job) -> float:
    """The median step, which on a busy machine is longer than was asked for."""
    times: dict[int, list[int]] = {}
    for rank, _, _, at_ns in sorted(job.rows(), key=lambda row: row[1]):
        times.setdefault(rank, []).append(at_ns)
    gaps = sorted(b - a for row in times.values() for a, b in itertools.pairwise(row))
    return gaps[len(gaps) // 2] / 1e6


def burst(changes: int) -> dict[str, object]:
    """Ten changes a second, none of which waits for the one before."""
    with cluster() as made:
        job = Job(made, 2, 50.0)
        before = {part: made.cpu_s(part) for part in PARTS}
        began = time.monotonic()
        ids: dict[float, str] = {}
        for number in range(changes):
            value = 0.2 + number / 10_000
            ids[value] = job.ask(value)
            time.sleep(max(0.0, began + (number + 1) / 10 - time.monotonic()))
        asked_s = time.monotonic() - began
        told = {value: job.outcome(operation) for value, operation in ids.items()}
        ended_s = time.monotonic() - began
        time.sleep(0.3)
        shares = {
            f"{part}_cpu_%": round(100 * (made.cpu_s(part) - before[part]) / ended_s, 1) for part in PARTS
        }
        return {
            "what": f"{changes} changes, 10 a second",
            "applied": sum(o["state"] == "applied" for o in told.values()),
            "contradicted": agree(job, told, merged=True),
            "asked_in_s": round(asked_s, 2),
            "all_ended_after_s": round(ended_s, 2),
            **shares,
        }


def killed(kills: int) -> dict[str, object]:
    """The control plane is killed in the midst of changes."""
    with cluster() as made:
        job = Job(made, 2, 20.0)
        told: dict[float, dict[str, Any]] = {}
        for number in range(kills):
            value = 0.2 + number / 10_000
            operation = job.ask(value)
            time.sleep(random.uniform(0.0, 0.15))
            made.kill(random.choice(PARTS))
            told[value] = job.outcome(operation)
        time.sleep(0.5)
        return {
            "what": f"{kills} kills of {', '.join(PARTS)}",
            "applied": sum(o["state"] == "applied" for o in told.values()),
            "not applied": sum(o["state"] == "not applied" for o in told.values()),
            "contradicted": agree(job, told, merged=False),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--changes", type=int, default=50)
    parser.add_argument("--only", choices=[*SHAPES, BURST, "kills"])
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for name in SHAPES:
        if args.only in (None, name):
            progress(name)
            rows.append(measure(name, args.changes))
    if args.only in (None, BURST):
        progress(BURST)
        rows.append(burst(args.changes))
    if args.kills:
        progress("kills")
        rows.append(killed(args.kills))
    notes = ["goal_ms is three of the median steps and 100 ms", "contradicted must be 0"]
    emit("Steering: from the request to the step that used it on every rank", rows, notes, args.json)


if __name__ == "__main__":
    main()
