"""What goes wrong on one rank of watched.py, or only looks like it: `--odd KIND --odd-rank R`.

Everything that is harmless ends by itself after `SECONDS`. Nothing here is announced.
"""

import ctypes
import fcntl
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

SECONDS = 30.0
AT = 60
"""The step at which it happens."""


def elsewhere(do: Callable[[], object], after_s: float = SECONDS) -> None:
    """In a process that nobody of the job sees, after a while."""
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            time.sleep(after_s)
            do()
        os._exit(0)
    os.wait()


def semaphore() -> None:
    turn = multiprocessing.Semaphore(0)
    elsewhere(turn.release)
    turn.acquire()


def fifo() -> None:
    path = tempfile.mkdtemp() + "/fifo"
    os.mkfifo(path)
    elsewhere(lambda: open(path, "w").close())
    with open(path) as file:
        file.read()


def flock() -> None:
    ready = multiprocessing.Semaphore(0)
    with tempfile.NamedTemporaryFile() as mine:
        if os.fork() == 0:
            with open(mine.name) as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                ready.release()
                time.sleep(SECONDS)
            os._exit(0)
        ready.acquire()
        with open(mine.name) as again:
            fcntl.flock(again, fcntl.LOCK_EX)


def traced() -> None:
    """Stopped by a debugger, which lets it continue after a while."""
    me, libc = os.getpid(), ctypes.CDLL(None)
    if os.fork() == 0:
        libc.ptrace(16, me, 0, 0)  # attach
        os.waitpid(me, 0x40000000)
        time.sleep(SECONDS)
        libc.ptrace(17, me, 0, 0)  # detach
        os._exit(0)
    libc.prctl(0x59616D61, -1, 0, 0, 0)  # anybody may
    time.sleep(1)


def busy() -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        sum(range(10_000))


def prints() -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        time.sleep(4)
        print("still preprocessing", flush=True)


def leaves() -> None:
    sys.exit(0)


_ONCE = {do.__name__: do for do in (semaphore, fifo, flock, traced, busy, prints)}


def before_init(kind: str, mine: bool) -> None:
    if kind == "late-init" and mine:
        signal.pause()


def in_loader(kind: str, index: int) -> None:
    if kind == "loader" and index > 64 * AT:
        signal.pause()


def in_step(kind: str, mine: bool, step: int, step_s: float) -> None:
    """Of the first generation only."""
    if kind == "max":
        op = dist.ReduceOp.MAX if mine and step > AT else dist.ReduceOp.SUM
        dist.all_reduce(torch.ones(1), op)
    if kind == "root":
        dist.broadcast(torch.ones(1), int(mine and step > AT))
    if kind == "tenth" and mine and step > AT and step % 10 == 0:
        until = time.thread_time() + 5 * step_s
        while time.thread_time() < until:
            pass
    if mine and step == AT and kind == "leaves":
        leaves()
    if mine and step == AT and kind in _ONCE:
        _ONCE[kind]()
