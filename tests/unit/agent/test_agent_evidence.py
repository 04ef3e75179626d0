"""Samples of a suspect: what counts as unchanged, and how stacks read."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchloom.agent.observe import kernel, kernel_waits, stacks
from torchloom.agent.observe.evidence import Sample, sign_of_life

STUCK = """
import threading
def tokenize():
    lock.acquire()
lock = threading.Lock()
lock.acquire()
print("here", flush=True)
tokenize()
"""


NOBODY = 2**30
"""No process has this number."""


def tree(**change: object) -> kernel.Tree:
    fields: dict[str, object] = {
        "root": NOBODY, "pids": (NOBODY,), "cpu_ns": 1000, "io_bytes": 7, "main_runs": 3
    }  # fmt: skip
    return kernel.Tree(**{**fields, **change})  # type: ignore[arg-type]


def stack(where: str = "tokenize() at data.py:88") -> stacks.Stack:
    return stacks.Stack(lines=(where,), location=where, gil="", print=where)


def test_what_stays_the_same_is_counted_from_the_first_sample() -> None:
    sample = Sample()
    for second in range(5):
        sample.take(stack(), tree(), second * 10**9)
    assert (sample.samples, sample.unchanged_ns) == (5, 4 * 10**9)
    assert sample.location == "tokenize() at data.py:88"


@pytest.mark.parametrize(
    "changed", [{"pids": (NOBODY, 6)}, {"io_bytes": 8}, {"main_runs": 4}, {"cpu_ns": 1000 + 10**8}]
)
def test_any_sign_of_work_begins_anew(changed: dict[str, object]) -> None:
    sample = Sample()
    sample.take(stack(), tree(), 0)
    sample.take(stack(), tree(), 10**9)
    sample.take(stack(), tree(**changed), 2 * 10**9)
    assert (sample.samples, sample.unchanged_ns) == (1, 0)


def test_another_stack_begins_anew_and_a_little_cpu_of_a_watchdog_does_not() -> None:
    sample = Sample()
    sample.take(stack(), tree(), 0)
    sample.take(stack(), tree(cpu_ns=1000 + 10**6), 10**9)
    assert sample.samples == 2
    sample.take(stack("save() at train.py:3"), tree(cpu_ns=1000 + 10**6), 2 * 10**9)
    assert sample.samples == 1


def test_a_stack_that_could_not_be_read_changes_nothing() -> None:
    sample = Sample()
    for second in range(3):
        sample.take(stack(), tree(), second * 10**9)
    sample.take(None, tree(), 3 * 10**9)
    sample.take(stack(), tree(), 4 * 10**9)
    assert (sample.samples, sample.unchanged_ns) == (4, 4 * 10**9)
    sample.take(None, tree(io_bytes=8), 5 * 10**9)
    assert (sample.samples, sample.unchanged_ns) == (0, 0), "what is counted changed meanwhile"


def test_without_any_stack_nothing_is_called_unchanged() -> None:
    sample = Sample()
    for second in range(5):
        sample.take(None, tree(), second * 10**9)
    assert (sample.samples, sample.unchanged_ns) == (0, 0)
    assert sample.quiet_ns == 4 * 10**9, "counters alone tell that it shows no life"


@pytest.mark.parametrize(
    ("changed", "printed", "says"),
    [
        ({"cpu_ns": 1000 + 98 * 10**7}, 0, "it uses 98 % of a core"),
        ({"cpu_ns": 1000 + 5 * 10**7}, 0, "it uses 5 % of a core"),
        ({}, 17, "it prints"),
        ({"pids": (NOBODY, 9)}, 0, "it starts or ends child processes"),
        ({"io_bytes": 10**6}, 0, "it reads or writes files"),
        ({"major_faults": 500}, 0, "it reads pages back from a disk (swap)"),
    ],
)
def test_signs_of_life(changed: dict[str, object], printed: int, says: str) -> None:
    sample = Sample()
    sample.take(stack(), tree(), 0)
    sample.take(stack(), tree(), 10**9)
    assert (sample.life, sample.quiet_ns) == ("", 10**9)
    sample.take(stack(), tree(**changed), 2 * 10**9, printed)
    assert (sample.life, sample.quiet_ns) == (says, 0)
    sample.take(stack(), tree(**changed), 5 * 10**9, printed)
    assert sample.quiet_ns == 3 * 10**9


def test_a_loop_that_only_looks_whether_something_has_come_is_no_sign_of_life() -> None:
    sample = Sample()
    for second in range(5):
        runs = {"main_runs": 3 + 5 * second, "cpu_ns": 1000 + second * 10**6, "io_bytes": 7 + 10 * second}
        sample.take(stack(), tree(**runs), second * 10**9)
    assert sample.quiet_ns == 4 * 10**9 and sample.unchanged_ns == 0


def test_a_process_that_gets_no_core_is_not_stuck_and_says_so() -> None:
    sample = Sample()
    for second in range(5):
        sample.take(stack(), tree(run_delay_ns=second * 9 * 10**8), second * 10**9)
    assert sample.quiet_ns == 0 and sample.life == "it wants a core and has none for 90 % of the time"
    busy = sign_of_life(
        tree(), tree(cpu_ns=2 * 10**8, run_delay_ns=8 * 10**8), 10**9, kernel_waits.NOTHING, 0
    )
    assert busy == "it uses 20 % of a core and wants one for 80 % of the time"


def test_frames_of_libraries_are_passed_over() -> None:
    frames = (
        stacks.StackFrame("wait", "/usr/lib/python3.11/threading.py", "threading.py", 320),
        stacks.StackFrame(
            "get", "/venv/lib/python3.11/site-packages/torch/utils/data.py", "torch/data.py", 9
        ),
        stacks.StackFrame("tokenize", "/home/me/job/data.py", "data.py", 88),
        stacks.StackFrame("<module>", "/home/me/job/train.py", "train.py", 4),
    )
    found = stacks.summary(7, (stacks.Thread(frames, "MainThread", 7),))
    assert found.location == "tokenize() at data.py:88"
    assert found.lines[-1] == "train.py:4"


def test_what_starts_a_script_is_not_in_its_stack() -> None:
    starters = tuple(
        stacks.StackFrame(name, file)
        for name, file in (
            ("_run_script", "/x/torchloom/probe/program.py"),
            ("run", "/x/torchloom/probe/worker.py"),
            ("run", "/x/torchloom/spawner/child.py"),
            ("_run_code", "<frozen runpy>"),
        )
    )
    own = (
        stacks.StackFrame("work", "/home/me/train.py", line=7),
        stacks.StackFrame("<module>", "/home/me/train.py"),
    )
    found = stacks.summary(7, (stacks.Thread((*own, *starters), "MainThread", 7),))
    assert found.lines == ("work() at train.py:7", "train.py:0")
    assert len(stacks.summary(7, (stacks.Thread(starters, "MainThread", 7),)).lines) == len(starters)


def test_of_a_child_only_what_it_runs_itself_is_shown() -> None:
    """A forked data-loader worker has the frames of its parent below its own."""

    def frames(*own: stacks.StackFrame) -> tuple[stacks.Thread, ...]:
        library = "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py"
        below = (
            stacks.StackFrame("_worker_loop", library, line=320),
            stacks.StackFrame("_bootstrap", "/usr/lib/python3.11/multiprocessing/process.py", line=314),
            stacks.StackFrame("<module>", "/home/me/train.py", line=30),
        )
        return (stacks.Thread((*own, *below), "MainThread", 7),)

    hung = stacks.of_child(7, frames(stacks.StackFrame("__getitem__", "/home/me/data.py", line=9)))
    assert hung is not None and hung.location == "__getitem__() at data.py:9" and len(hung.lines) == 1
    idle = stacks.StackFrame("poll", "/usr/lib/python3.11/multiprocessing/connection.py", line=257)
    assert stacks.of_child(7, frames(idle)) is None


def test_our_own_files_are_never_the_place() -> None:
    ours = stacks.StackFrame("step", "/src/torchloom/probe/observe/steps.py", line=3)
    library = stacks.StackFrame("run", "/usr/lib/python3.11/threading.py", line=5)
    found = stacks.summary(7, (stacks.Thread((ours, library), "MainThread", 7),))
    assert found.location == "run() at threading.py:5"
    users = stacks.StackFrame("main", "/home/me/train.py", line=8)
    assert (
        stacks.summary(7, (stacks.Thread((ours, users), "MainThread", 7),)).location == "main() at train.py:8"
    )
    injected = stacks.StackFrame("injected_hang", "/src/torchloom/probe/injected_faults.py", line=2)
    found = stacks.summary(7, (stacks.Thread((injected, users), "MainThread", 7),))
    assert found.location.startswith("injected_hang()")


def may_look_into(pid: int) -> bool:
    """The kernel's own word, whatever py-spy can do: it asks the same of whoever opens this file."""
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
    except PermissionError:
        return False
    return True


def stack_of(pid: int) -> stacks.Stack:
    """As soon as it is where it stays; a reading may fail on a machine without time for it."""
    end, found = time.monotonic() + 120, None
    while time.monotonic() < end and (found is None or "tokenize" not in found.location):
        found = asyncio.run(stacks.read(pid))
    assert found is not None, "py-spy may look into it and has no stack"
    return found


@pytest.mark.parametrize("stopped", [False, True])
def test_a_real_process_that_waits_for_a_lock(tmp_path: Path, stopped: bool) -> None:
    """py-spy and /proc on a real process, also on one that is stopped."""
    script = tmp_path / "job.py"
    script.write_text(STUCK)
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "here\n"
        if not may_look_into(process.pid):
            pytest.skip("nobody may look into other processes here")
        assert stack_of(process.pid).location == "tokenize() at job.py:4"
        if stopped:  # only now: it would not come to the lock any more
            os.kill(process.pid, signal.SIGSTOP)
            assert stack_of(process.pid).location == "tokenize() at job.py:4"
        # Whoever is looked at may be awake for a moment.
        while kernel.state_of(process.pid) == "R":
            time.sleep(0.001)
        assert kernel.state_of(process.pid) == ("T" if stopped else "S")
        if not stopped:
            assert kernel_waits.waits_on((process.pid,)) in ("lock", "unknown")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def test_a_reading_that_takes_too_long_is_ended_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, began = tmp_path / "py-spy", tmp_path / "began"
    slow.write_text(f"#!/bin/sh\necho $$ > {began}\nexec sleep 1000\n")
    slow.chmod(0o755)
    monkeypatch.setattr(stacks, "program", lambda: str(slow))
    monkeypatch.setattr(stacks, "_ENDS_WITHIN_S", 240.0)
    found: object = None
    within_s = 0.1
    while not began.exists():
        within_s *= 2  # until it has begun at all
        monkeypatch.setattr(stacks, "_WITHIN_S", within_s)
        found = asyncio.run(stacks.read(os.getpid()))
    assert found is None
    gc.collect()  # what it left would be told now, by an error in a finalizer
    if pid := began.read_text():
        assert kernel.state_of(int(pid)) == ""


def test_a_process_that_is_gone_has_no_counts() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert kernel.state_of(process.pid) == ""
    assert kernel.counts(process.pid) is None and kernel.tree(process.pid) is None
