"""Threads of a moment, for work on large memory beside or instead of the training thread.

Owns how many there are and what they may do to torch. A thread that calls a torch operation on much data gets
a team of OpenMP threads of its own, which spin when they have nothing to do and so take the cores away from
the training. A thread that called `alone` has none; the setting is the thread's and changes no other.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import torch

AT_ONCE = 4
"""More threads than this do not make a memory copy faster."""


def alone() -> None:
    """From now on torch's operations run on this thread only. For threads that are ours."""
    _set(1)


class BriefPause:
    """A wait before work beside the training begins, for as long as nobody waits for that work."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds, self._over = seconds, threading.Event()

    def wait(self) -> None:
        if self._seconds > 0:
            self._over.wait(self._seconds)

    def end(self) -> None:
        self._over.set()


def beside(work: Callable[[], None], name: str, pause: BriefPause | None = None) -> threading.Thread | None:
    """Run it on a separate thread, after the pause; None if this process may not have another one.

    The thread begins when this call returns: one that has just been started keeps the interpreter until it
    waits for something, and whoever starts it would wait for that.
    """
    may_begin = threading.Lock()

    def begin() -> None:
        with may_begin:
            pass
        if pause is not None:
            pause.wait()
        alone()
        work()

    thread = threading.Thread(target=begin, name=name, daemon=True)
    with may_begin:
        try:
            thread.start()
        except RuntimeError:
            return None
    return thread


def work_on(threads: int, work: Callable[[int], None]) -> None:
    """Call work(0) … work(threads - 1) at the same time, the first of them here. Raises what they raise."""
    usual = torch.get_num_threads()
    with ThreadPoolExecutor(threads, "loom-read", initializer=alone) as pool:
        others = [pool.submit(work, number) for number in range(1, threads)]
        try:
            _set(1)
            work(0)
        finally:
            _set(usual)
        for other in others:
            other.result()


def at_once() -> int:
    """How many threads to read with: as many as the script lets torch have."""
    return max(1, min(AT_ONCE, int(torch.get_num_threads())))


def _set(threads: int) -> None:
    torch.get_num_threads()  # torch sets the number for a new thread when it is first asked: before we do
    with suppress(AttributeError, OSError, TypeError):  # another OpenMP, or none: then it is only slower
        ctypes.CDLL(None).omp_set_num_threads(threads)
