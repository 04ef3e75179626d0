"""When a process counts as stopped: real processes, stopped for good or again and again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from torchloom.agent.observe import kernel
from torchloom.agent.observe.stopped_replicas import FEWEST_LOOKS, STOPPED_FOR_S, StoppedProcesses


@pytest.fixture
def busy() -> Iterator[int]:
    """A process that computes."""
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait()


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    until(lambda: kernel.state_of(pid) == "T")


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def cpu_ns(pid: int) -> int:
    found = kernel.counts(pid)
    assert found is not None
    return found.cpu_ns


def test_a_process_that_stays_stopped_is_found_after_several_looks_and_some_time(busy: int) -> None:
    stop(busy)
    processes = StoppedProcesses()
    quick = [processes.look([busy], 0.001 * look) for look in range(2 * FEWEST_LOOKS)]
    assert quick == [[]] * len(quick), "many looks in no time show nothing"
    assert processes.look([busy], STOPPED_FOR_S + 1) == [busy]
    late = StoppedProcesses()
    assert late.look([busy], 0.0) == late.look([busy], 100.0) == [], "an agent that slept has looked twice"


def test_one_that_runs_between_the_looks_is_never_found(busy: int) -> None:
    """As with cpulimit, which stops and continues a process all the time."""
    processes = StoppedProcesses()
    for look in range(3 * FEWEST_LOOKS):
        stop(busy)
        assert processes.look([busy], float(look)) == []
        before = cpu_ns(busy)
        os.kill(busy, signal.SIGCONT)
        until(lambda used=before: cpu_ns(busy) > used)  # type: ignore[misc]
    os.kill(busy, signal.SIGCONT)
    assert processes.look([busy], 1000.0) == []
