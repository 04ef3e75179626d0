"""Starts the same script under torchrun and under torchloom, and ends it without a trace."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

BIN = Path(sys.executable).parent
WORKLOADS = Path(__file__).resolve().parent.parent / "workloads"


class Notes:
    """What the workload's processes noted: (pid, rank, step, monotonic ns)."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="loom-bench-"))

    def steps(self) -> Iterator[tuple[int, int, int, int]]:
        for path in self.directory.iterdir():
            for line in path.read_text().splitlines():
                fields = line.split()
                if len(fields) == 3:
                    yield int(path.name), int(fields[0]), int(fields[1]), int(fields[2])

    def pids(self, rank: int) -> set[int]:
        return {pid for pid, r, _, _ in self.steps() if r == rank}

    def most_steps(self) -> int:
        return max((step for _, _, step, _ in self.steps()), default=0)

    def first_step_ns(self, but: set[int]) -> int | None:
        """When a process that is not one of `but` completed its first step."""
        return min((ns for pid, _, step, ns in self.steps() if pid not in but and step == 1), default=None)

    @property
    def learned(self) -> Path:
        """There once a job by hand has imported what its ranks import (workloads/by_hand.py)."""
        return Path(f"{self.directory}.ready")

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        for ending in (".ready", ".modules"):
            Path(f"{self.directory}{ending}").unlink(missing_ok=True)


def environment(**more: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("LOOM_")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled, ours and torch's alike
    # Whoever measures a tree that is not the installed one names it there.
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(WORKLOADS), env.get("PYTHONPATH"))))
    env["OMP_NUM_THREADS"] = "1"
    return env | more


def torchrun_command(
    notes: Notes, *script_args: str, script: str = "ddp_steps.py", workers: int = 2
) -> list[str]:
    flags = ["--nproc-per-node", str(workers), "--max-restarts", "5", "--rdzv-backend", "c10d"]
    flags += ["--rdzv-endpoint", "localhost:0"]
    return [
        str(BIN / "torchrun"),
        *flags,
        str(WORKLOADS / script),
        str(notes.directory),
        *script_args,
    ]


def loom_command(
    verb: str,
    notes: Notes,
    *script_args: str,
    flags: tuple[str, ...] = (),
    script: str = "ddp_steps.py",
    workers: int = 2,
) -> list[str]:
    words = [str(WORKLOADS / script), str(notes.directory), *script_args]
    return [str(BIN / "loom"), verb, "--nproc-per-node", str(workers), *flags, *words]


def by_hand_command(
    notes: Notes, *script_args: str, script: str = "ddp_steps.py", workers: int = 2
) -> list[str]:
    """The physical limit: a warm process that forks the ranks, watched by nobody."""
    words = [str(workers), str(WORKLOADS / script), str(notes.directory), *script_args]
    return [sys.executable, str(WORKLOADS / "by_hand.py"), *words]


@contextlib.contextmanager
def process(command: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in its own session; kill the whole session at the end."""
    child = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@contextlib.contextmanager
def torchrun(command: list[str], notes: Notes) -> Iterator[subprocess.Popen[bytes]]:
    """torchrun leaves its workers behind when it is killed, so they are ended by their own pids."""
    with process(command, environment()) as child:
        try:
            yield child
        finally:
            workers = psutil.Process(child.pid).children(recursive=True) if child.poll() is None else []
    noted = {pid for pid, *_ in notes.steps()} - {worker.pid for worker in workers}
    for worker in workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()  # psutil compares the start time first
    for pid in noted:
        _kill_workload(pid, notes)


def _kill_workload(pid: int, notes: Notes) -> None:
    """Kill a process that noted steps, unless its number is another's by now: pids are used again."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if str(notes.directory) in process.cmdline():
            process.kill()


@contextlib.contextmanager
def loom_up(*flags: str, **more: str) -> Iterator[dict[str, str]]:
    """A `loom up` of its own, in a home of its own; yields the environment for clients, with `more`."""
    home = tempfile.mkdtemp(prefix="loom-bench-home-")
    env = environment(LOOM_HOME=home, **more)
    try:
        subprocess.run(
            [BIN / "loom", "up", "--port", "0", *flags], env=env, check=True, stdout=subprocess.DEVNULL
        )
        yield env
    finally:
        subprocess.run([BIN / "loom", "down", "--stop-jobs"], env=env, check=False, stdout=subprocess.DEVNULL)
        shutil.rmtree(home, ignore_errors=True)


def loom_json(env: dict[str, str], *args: str) -> object:
    out = subprocess.run([BIN / "loom", *args, "--json"], env=env, check=True, stdout=subprocess.PIPE)
    return json.loads(out.stdout)


def wait_for(condition: object, timeout_s: float, every_s: float = 0.01) -> bool:
    """Poll a callable until it is true; False when time is up."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(every_s)
    return False
