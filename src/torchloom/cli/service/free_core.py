"""Leaves a core to the spawner that imports torch while everything starts: a start waits for that import, and
on a host of two cores the weaver, which is ready earlier, would take part of its time.

For a process without children only: they would keep what it has here.
"""

from __future__ import annotations

import os
from contextlib import suppress

FEW = range(2, 4)
"""On as many cores a start is short of them."""


class FreeCore:
    def __init__(self) -> None:
        self._all: set[int] = set()

    def leave(self) -> None:
        """Use one core less from now on, if there are few."""
        found = os.sched_getaffinity(0)
        if len(found) in FEW:
            with suppress(OSError):
                os.sched_setaffinity(0, found - {min(found)})
                self._all = found

    def use_all(self) -> None:
        """Use all again, with every thread."""
        for thread in os.listdir("/proc/self/task") if self._all else ():
            with suppress(OSError):  # it has ended
                os.sched_setaffinity(int(thread), self._all)
