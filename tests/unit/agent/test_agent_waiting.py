"""What real processes wait for: what another process could end is never taken for a lock of their own."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchloom.agent.observe import another_program, file_locks, kernel, kernel_waits
from torchloom.agent.observe.evidence import Sample

Start = Callable[[str], subprocess.Popen[str]]
TEMPLATE = """
import ctypes, fcntl, multiprocessing, os, signal, socket, subprocess, sys, threading, time
{setup}
print("here", flush=True)
{wait}
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def begin(setup: str, wait: str) -> subprocess.Popen[str]:
        code = TEMPLATE.format(setup=setup, wait=wait)
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path
        )
        running.append(process)
        assert process.stdout is not None and process.stdout.readline() == "here\n"
        return process

    yield begin  # type: ignore[misc]
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def may_look() -> bool:
    return bool(kernel_waits.read_small(f"/proc/{os.getpid()}/syscall"))


def settled(pid: int) -> kernel_waits.KernelWait:
    """Once its main thread has come to where it stays."""
    end = time.monotonic() + 60
    found, before = kernel_waits.NOTHING, kernel_waits.KernelWait("unknown", "?")
    while time.monotonic() < end and (found != before or not found.call):
        before, found = found, kernel_waits.of_process(pid)
        time.sleep(0.05)
    return found


CASES = {
    "named semaphore": (
        "s = multiprocessing.Semaphore(0)",
        "s.acquire()",
        "outside",
        "it waits for a lock or a semaphore that other processes share",
    ),
    "lock": ("l = threading.Lock(); l.acquire()", "l.acquire()", "lock", "it waits for a lock"),
    "lock with a limit": ("e = threading.Event()", "e.wait(1000)", "unknown", ""),
    "pipe": ("r, w = os.pipe()", "os.read(r, 1)", "outside", "it reads from a pipe"),
    "fifo": ("os.mkfifo('f')", "open('f').read()", "outside", "it waits to open a file or a FIFO"),
    "open fifo": ("os.mkfifo('f'); d = os.open('f', os.O_RDWR)", "os.read(d, 1)", "outside", "FIFO"),
    "socket": ("a, b = socket.socketpair()", "a.recv(1)", "outside", "it waits for data from a socket"),
    "flock": (
        "a = open('x', 'w'); b = open('x'); fcntl.flock(a, fcntl.LOCK_EX)",
        "fcntl.flock(b, fcntl.LOCK_EX)",
        "outside",
        "it waits for a lock on ",
    ),
    "child": ("c = subprocess.Popen(['sleep', '1000'])", "c.wait()", "outside", "a child process"),
    "sleep": ("", "time.sleep(1000)", "timer", "it sleeps"),
    "select": ("import select; r, w = os.pipe()", "select.select([r], [], [])", "outside", "become ready"),
    "signal": ("", "signal.pause()", "outside", "it waits for a signal"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_it_waits_for(start: Callable[..., subprocess.Popen[str]], case: str) -> None:
    setup, wait, on, words = CASES[case]
    process = start(setup, wait)
    if not may_look():
        pytest.skip("nobody may look into processes here")
    found = settled(process.pid)
    try:
        assert words in found.words
        assert kernel_waits.waits_on((process.pid,)) == on
    finally:
        for child in kernel.tree(process.pid).pids:  # type: ignore[union-attr]
            if child != process.pid:
                os.kill(child, signal.SIGKILL)


def test_a_lock_that_a_signal_handler_may_release_is_not_its_own(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    handled = "signal.signal(signal.SIGUSR1, lambda *_: l.release())"
    process = start(f"l = threading.Lock(); l.acquire(); {handled}", "l.acquire()")
    if not may_look():
        pytest.skip("nobody may look into processes here")
    assert settled(process.pid).on == "lock"
    assert kernel_waits.waits_on((process.pid,)) == "unknown"


def test_who_traces_a_process_is_named(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("ctypes.CDLL(None).ptrace(0, 0, 0, 0)", "os.kill(os.getpid(), signal.SIGSTOP)")
    end = time.monotonic() + 60
    while kernel.state_of(process.pid) != "t" and time.monotonic() < end:
        time.sleep(0.01)
    assert kernel.state_of(process.pid) == "t"
    mine = Path("/proc/self/comm").read_text().strip()
    assert kernel_waits.tracer(process.pid) == f"{mine} (pid {os.getpid()})"


@pytest.mark.parametrize("call", ["flock", "lockf"])
def test_who_holds_a_file_lock_is_named(start: Callable[..., subprocess.Popen[str]], call: str) -> None:
    lock = f"f = open('x', 'a'); fcntl.{call}(f, fcntl.LOCK_EX)"
    holds = start(lock, "time.sleep(1000)")
    waits = start("f = open('x', 'a')", f"fcntl.{call}(f, fcntl.LOCK_EX)")
    if not may_look():
        pytest.skip("nobody may look into processes here")
    assert settled(waits.pid).for_lock
    assert file_locks.holder(waits.pid) == holds.pid
    assert file_locks.name_of(holds.pid, waits.pid, {holds.pid: 3}) == f"rank 3 (pid {holds.pid})"
    child = file_locks.name_of(holds.pid, waits.pid, {os.getpid(): 3})
    assert child == f"a child of rank 3 (pid {holds.pid})"
    comm = Path(f"/proc/{holds.pid}/comm").read_text().strip()
    assert file_locks.name_of(holds.pid, waits.pid, {}) == f"{comm} (pid {holds.pid})"
    assert file_locks.holder(holds.pid) == 0


LOCKS = b"""1: POSIX  ADVISORY  READ 27349 fe:00:6775706 128 128
2: FLOCK  ADVISORY  WRITE 4711 fe:00:3260659 0 EOF
2: -> FLOCK  ADVISORY  WRITE 4712 fe:00:3260659 0 EOF
2:  -> FLOCK  ADVISORY  WRITE 4713 fe:00:3260659 0 EOF
3: OFDLCK ADVISORY  WRITE -1 fe:00:42 0 EOF
3: -> OFDLCK ADVISORY  WRITE -1 fe:00:42 0 EOF
4: nonsense
"""


def test_the_kernels_table_of_locks() -> None:
    """Also one that waits behind another; nobody is named for a lock without an owner."""
    found = {pid: file_locks.blocked_by(LOCKS, pid) for pid in (4711, 4712, 4713, 27349, 0)}
    assert found == {4711: 0, 4712: 4711, 4713: 4711, 27349: 0, 0: 0}


ENDS = "ctypes.CDLL(None).syscall(60, 0)"
"""exit, and not exit_group: the main thread alone ends."""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of the call is that of x86_64")
def test_a_process_that_has_lost_its_main_thread_waits_for_nothing_from_outside(start: Start) -> None:
    keep = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
    process = start(keep, ENDS)  # type: ignore[call-arg]
    if not may_look():
        pytest.skip("no permission to look into other processes")
    end = time.monotonic() + 60
    while time.monotonic() < end and kernel_waits.of_process(process.pid).call != kernel_waits.ENDED:
        time.sleep(0.05)
    found = kernel_waits.of_process(process.pid)
    assert found.on == "lock" and "main thread has ended" in found.words
    tree = kernel.tree(process.pid)
    assert tree is not None
    while time.monotonic() < end and kernel_waits.waits_on(tree.pids) != "lock":
        time.sleep(0.05)  # the other thread may have been at work just then
    assert kernel_waits.waits_on(tree.pids) == "lock"
    sample = Sample()
    for second in range(6):
        sample.take(None, tree, second * 10**9)
    assert sample.samples >= 5 and sample.waits_on == "lock", "it has no stack, and that is known"


@pytest.mark.parametrize(
    ("program", "names"),
    [
        ("os.execvp('sleep', ['sleep', '1000'])", {"sleep", "coreutils", "busybox"}),
        (
            "os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(1000)'])",
            {os.path.basename(os.path.realpath(sys.executable))},
        ),
    ],
)
def test_a_worker_that_has_become_another_program_is_recognised(
    start: Start, tmp_path: Path, program: str, names: set[str]
) -> None:
    """Also if it executes the same interpreter again; a process that was only forked is what it was."""
    wait = "while not os.path.exists('go'): time.sleep(0.02)"
    process = start("os.fork() or time.sleep(1000)", f"{wait}\n{program}")  # type: ignore[call-arg]
    began = another_program.stack_start_of(process.pid)
    tree = kernel.tree(process.pid)
    assert tree is not None
    (child,) = set(tree.pids) - {process.pid}
    assert not another_program.since(process.pid, began)
    assert not another_program.since(child, began)
    assert not another_program.since(process.pid, 0), "an older probe does not say where its stack began"
    Path(tmp_path, "go").touch()
    end = time.monotonic() + 60
    while time.monotonic() < end and not another_program.since(process.pid, began):
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    assert another_program.since(process.pid, began) in names
