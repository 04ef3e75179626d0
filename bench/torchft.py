"""A replica of two is killed, or stopped inside a collective: torchft under torchloom beside stock torchft.

    python bench/torchft.py [--runs 10] [--releases nightly stable] [--json]

Stock is torchft's own lighthouse with its defaults and one torchrun for each replica, as its README shows.
The script, its step (20 ms and a gloo allreduce) and its timeouts (15 s) are the same. In each run replica 1
is killed (SIGKILL); when it is back, it is stopped (SIGSTOP) and continued once the survivor steps again.
Measured: the survivor's longest pause between two steps, the time until the lost replica is in the quorum
again, and whether the survivor kept its process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psutil

from support.launchers import BIN, WORKLOADS, environment, loom_up, process, wait_for
from support.table import emit, progress, spread

GIVE_UP_S = 120.0
STABLE = Path(sys.prefix) / "torchft-stable"
SCRIPT = str(WORKLOADS / "torchft_steps.py")


class StepNote(NamedTuple):
    ns: int
    step: int
    replicas: int


class ReplicaNotes:
    """What the replicas noted."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="loom-bench-"))

    def pid(self, replica: int) -> int:
        """Of its newest process that has made a step; 0: none has."""
        found = [(p.stat().st_mtime_ns, int(p.suffix[1:])) for p in self.directory.glob(f"{replica}.*")]
        return max(found)[1] if found else 0

    def steps(self, replica: int, after_ns: int = 0) -> list[StepNote]:
        found = []
        for path in self.directory.glob(f"{replica}.*"):
            for line in path.read_text().splitlines()[-2000:]:
                fields = line.split()
                if len(fields) == 3 and int(fields[0]) >= after_ns:
                    found.append(StepNote(*map(int, fields)))
        return sorted(found)

    def together(self, after_ns: int, many: int = 10) -> bool:
        """Whether both have made so many steps of two replicas since."""
        return all(sum(s.replicas == 2 for s in self.steps(r, after_ns)) >= many for r in (0, 1))


def with_release(release: str, env: dict[str, str]) -> dict[str, str]:
    if release == "nightly":
        return env
    return env | {"PYTHONPATH": os.pathsep.join((str(STABLE), env["PYTHONPATH"]))}


@contextlib.contextmanager
def stock(release: str, notes: ReplicaNotes) -> Iterator[None]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = with_release(release, environment())
    program = (STABLE / "bin" if release == "stable" else BIN) / "torchft_lighthouse"
    lighthouse = [sys.executable, str(program), "--min_replicas", "1", "--bind", f"127.0.0.1:{port}"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(process(lighthouse, env))
        children = []
        for replica in range(2):
            mine = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "REPLICA_GROUP_ID": str(replica)}
            command = [str(BIN / "torchrun"), "--nproc-per-node", "1", "--max-restarts", "1000"]
            command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
            children.append(
                stack.enter_context(process([*command, SCRIPT, str(notes.directory)], env | mine))
            )
        try:
            yield
        finally:
            for child in children:
                if child.poll() is None:
                    for worker in psutil.Process(child.pid).children(recursive=True):
                        with contextlib.suppress(psutil.NoSuchProcess):
                            worker.kill()


@contextlib.contextmanager
def loom(release: str, notes: ReplicaNotes) -> Iterator[None]:
    with loom_up() as env:
        env = with_release(release, env)
        command = [str(BIN / "loom"), "submit", "--replicas", "2", "--name", "bench", "--env", "PYTHONPATH"]
        command += ["--max-restarts", "1000", SCRIPT, str(notes.directory)]
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        yield


def longest_pause_s(notes: ReplicaNotes, since_ns: int) -> float:
    """Of the survivor, counted from the fault on: what it waited for before is not the fault's."""
    times = [since_ns, *(s.ns for s in notes.steps(0, since_ns))]
    return max((b - a for a, b in pairwise(times)), default=0) / 1e9


def killed(notes: ReplicaNotes) -> tuple[float, float] | None:
    """The survivor's longest pause, and the time until both train together again."""
    at_ns = time.monotonic_ns()
    old = notes.pid(1)
    os.kill(old, signal.SIGKILL)
    if not wait_for(lambda: notes.pid(1) != old and notes.together(at_ns), GIVE_UP_S):
        return None
    back = next(s.ns for s in notes.steps(1, at_ns) if s.replicas == 2)
    return longest_pause_s(notes, at_ns), (back - at_ns) / 1e9


def stopped(notes: ReplicaNotes) -> float | None:
    """The survivor's longest pause while the other one stays stopped."""
    at_ns = time.monotonic_ns()
    victim = notes.pid(1)
    os.kill(victim, signal.SIGSTOP)
    alone = wait_for(lambda: any(s.replicas == 1 for s in notes.steps(0, at_ns)), GIVE_UP_S)
    pause = longest_pause_s(notes, at_ns)
    os.kill(victim, signal.SIGCONT)
    again_ns = time.monotonic_ns()
    wait_for(lambda: notes.together(again_ns), GIVE_UP_S)
    return pause if alone else None


def measure(launcher: str, release: str, runs: int) -> list[dict[str, object]]:
    notes = ReplicaNotes()
    pauses: list[float] = []
    returns: list[float] = []
    stops: list[float] = []
    kept = 0
    try:
        with (loom if launcher == "torchloom" else stock)(release, notes):
            if not wait_for(lambda: notes.together(0, 30), 300):
                raise SystemExit(f"{launcher} with torchft {release} did not start")
            for run in range(runs):
                survivor = notes.pid(0)
                one = killed(notes)
                two = stopped(notes)
                kept += notes.pid(0) == survivor
                if one is not None:
                    pauses.append(one[0])
                    returns.append(one[1])
                if two is not None:
                    stops.append(two)
                progress(f"{launcher} {release} run {run + 1}: killed {one}, stopped {two}")
    finally:
        shutil.rmtree(notes.directory, ignore_errors=True)
    cases = (("pause after SIGKILL", pauses), ("back in quorum", returns), ("pause after SIGSTOP", stops))
    same = f"{kept}/{runs}"
    return [
        {"case": case, "torchft": release, "launcher": launcher, "survivor kept": same, **spread(values)}
        for case, values in cases
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--releases", nargs="+", choices=("nightly", "stable"), default=["nightly", "stable"])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [
        row
        for release in args.releases
        for launcher in ("stock", "torchloom")
        for row in measure(launcher, release, args.runs)
    ]
    rows.sort(key=lambda row: (str(row["torchft"]), str(row["case"]), str(row["launcher"])))
    notes = []
    for mine in (row for row in rows if row["launcher"] == "torchloom"):
        other = next(
            r
            for r in rows
            if r["launcher"] == "stock" and r["case"] == mine["case"] and r["torchft"] == mine["torchft"]
        )
        ours, theirs = mine["median_s"], other["median_s"]
        if isinstance(ours, float) and isinstance(theirs, float) and ours:
            notes.append(
                f"{mine['case']}, torchft {mine['torchft']}: {theirs / ours:.1f} × shorter (medians)"
            )
    emit("torchft: one of two replicas is lost", rows, notes, args.json)


if __name__ == "__main__":
    main()
