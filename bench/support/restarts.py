"""One restart of a job of its own: start, some steps, SIGKILL of rank 1, first step of a new process, end.

Under torchrun, under torchloom (with the time of each phase, by its incident), and by hand. Compares nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.launchers import (
    BIN,
    Notes,
    by_hand_command,
    environment,
    loom_command,
    loom_up,
    process,
    torchrun,
    torchrun_command,
    wait_for,
)
from torchloom.client import Client, Endpoint
from torchloom.errors import LoomError
from torchloom.home import Home

STEPS_BEFORE = 30
TRAINED_S = 4.0
"""So long a job trains before the kill: jobs that fail have usually trained for a while, and torchloom
prepares their restart in that time."""
PHASES = ("seen", "decided", "others_ended", "started", "stepped")
"""The end of each: its agent has seen the killed process end; the core has decided; no process of the old
generation is left; those of the new one exist; the first step is made."""


class NotStarted(Exception):
    """The job did not come to be killed: that says nothing about its recovery."""


@dataclass(frozen=True)
class Limits:
    """Of one run, and of all of them."""

    start_s: float
    recover_s: float
    until: float

    def left(self, seconds: float) -> float:
        return max(0.0, min(seconds, self.until - time.monotonic()))

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until


@dataclass(frozen=True)
class Restarted:
    """None: it made no step in time."""

    seconds: float | None
    phases_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    script: str = "ddp_steps.py"
    words: tuple[str, ...] = ()
    workers: int = 2
    flags: tuple[str, ...] = ()
    """Of `loom submit`."""


@contextmanager
def noted() -> Iterator[Notes]:
    notes = Notes()
    try:
        yield notes
    finally:
        notes.remove()


def _running(notes: Notes, workers: int, limits: Limits) -> set[int]:
    """The processes of a job all of whose ranks have made steps."""

    def all_step() -> bool:
        made = {rank: step for _, rank, step, _ in notes.steps()}
        return len(made) == workers and max(made.values()) >= STEPS_BEFORE

    if not wait_for(all_step, limits.left(limits.start_s), every_s=0.05):
        raise NotStarted
    time.sleep(limits.left(TRAINED_S))
    return {pid for pid, *_ in notes.steps()}


def _first_step_after(notes: Notes, before: set[int], began_ns: int, limits: Limits) -> float | None:
    if not wait_for(lambda: notes.first_step_ns(but=before) is not None, limits.left(limits.recover_s)):
        return None
    first = notes.first_step_ns(but=before)
    assert first is not None
    return (first - began_ns) / 1e9


def _kill(notes: Notes, workers: int, limits: Limits) -> tuple[float | None, int]:
    """Kill rank 1; seconds to the first step of a new process, and when it was killed by the wall clock."""
    before = _running(notes, workers, limits)
    (victim,) = notes.pids(rank=1)
    killed_ns, wall_ns = time.monotonic_ns(), time.time_ns()
    os.kill(victim, signal.SIGKILL)
    return _first_step_after(notes, before, killed_ns, limits), wall_ns


def under_torchrun(what: Workload, limits: Limits) -> Restarted:
    with noted() as notes:
        command = torchrun_command(notes, *what.words, script=what.script, workers=what.workers)
        with torchrun(command, notes):
            return Restarted(_kill(notes, what.workers, limits)[0])


def under_loom(env: dict[str, str], what: Workload, limits: Limits) -> Restarted:
    with noted() as notes:
        command = loom_command(
            "submit", notes, *what.words, flags=what.flags, script=what.script, workers=what.workers
        )
        out = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
        job = out.split()[-1]
        try:
            seconds, killed_ns = _kill(notes, what.workers, limits)
            return Restarted(seconds, {} if seconds is None else _phases(env, job, killed_ns, seconds))
        finally:
            stop = [BIN / "loom", "stop", "--kill", job]
            subprocess.run(stop, env=env, check=False, stdout=subprocess.DEVNULL)


def learned_under_loom(what: Workload, limits: Limits, learn: bool) -> Restarted:
    """In a service of its own, so that nothing is known of the job before its first run; the kill comes when
    its imports have been learned."""
    with loom_up() as env, noted() as notes:
        env = env | ({} if learn else {"LOOM_LEARN_IMPORTS": "0"})
        command = loom_command("submit", notes, *what.words, script=what.script, workers=what.workers)
        out = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
        log = Path(env["LOOM_HOME"]) / "logs" / "agent.log"
        if learn and not wait_for(
            lambda: "modules of its job" in log.read_text(), limits.left(limits.start_s), every_s=0.1
        ):
            raise NotStarted
        seconds, killed_ns = _kill(notes, what.workers, limits)
        return Restarted(
            seconds, {} if seconds is None else _phases(env, out.split()[-1], killed_ns, seconds)
        )


def by_hand(what: Workload, limits: Limits, learn: bool = False) -> Restarted:
    """The physical limit: a warm process kills all ranks and forks new ones, watched by nobody."""
    with noted() as notes:
        command = by_hand_command(notes, *what.words, script=what.script, workers=what.workers)
        with process(command, environment()) as parent:
            before = _running(notes, what.workers, limits)
            if learn:
                parent.send_signal(signal.SIGUSR2)
                if not wait_for(notes.learned.exists, limits.left(limits.start_s)):
                    raise NotStarted
                before = {pid for pid, *_ in notes.steps()}
            asked_ns = time.monotonic_ns()
            parent.send_signal(signal.SIGUSR1)
            return Restarted(_first_step_after(notes, before, asked_ns, limits))


def _phases(env: dict[str, str], job: str, killed_ns: int, seconds: float) -> dict[str, float]:
    """Milliseconds of each phase; none if the incident cannot be read."""
    client = Client(Endpoint.find(Home(Path(env["LOOM_HOME"]))))
    try:
        found = client.incidents(job=job)
    except LoomError:
        return {}
    finally:
        client.close()
    if not found:
        return {}
    line = found[0]["timeline"]
    ends = [line["detected_ns"], line["decided_ns"], line["stopped_ns"], line["spawned_ns"]]
    ends.append(killed_ns + int(seconds * 1e9))
    begins = [killed_ns, *ends]
    taken = zip(PHASES, begins, ends, strict=False)
    return {phase: (end - begin) / 1e6 for phase, begin, end in taken if end and begin}
