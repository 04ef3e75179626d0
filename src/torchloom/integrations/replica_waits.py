"""How long a replica waits for quorums, and whether it is held back because a policy leaves it out.

The waits tell a slow replica from those that wait for it (core/detect/slow_replicas.py).
A replica that is left out waits in its request for a quorum, longer than torchft's own timeout allows.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any

_KEPT = 16


class QuorumWaits:
    """Of the script's thread."""

    def __init__(self) -> None:
        self._waited_ns = 0
        self._newest: deque[int] = deque(maxlen=_KEPT)
        self._quorum: int | None = None
        self._steps = 0

    def wait(self, call: Callable[[], Any]) -> Any:
        began_ns = time.monotonic_ns()
        try:
            return call()
        finally:
            self._waited_ns += time.monotonic_ns() - began_ns

    def committed(self, quorum: int, done: bool, *, rounds: bool = False) -> dict[str, float]:
        """What to report after a step. The step in which a quorum begins, or which fails, does not count.
        `rounds`: a commit is one of many steps, which do not wait for a quorum."""
        waited_ns, self._waited_ns = self._waited_ns, 0
        if quorum != self._quorum or not done:
            self._quorum, self._steps = quorum, 0
            self._newest.clear()
        else:
            self._steps += 1
            self._newest.append(0 if rounds else waited_ns)
        wait_s = median(self._newest) / 1e9 if self._newest else 0.0
        return {"torchft/quorum_steps": self._steps, "torchft/quorum_wait_s": wait_s}


class HeldBack:
    """Whether the lighthouse leaves this replica out at present."""

    def __init__(self) -> None:
        self._free = threading.Event()
        self._free.set()
        self._freed = 0

    def set(self, held: bool) -> None:
        if held:
            self._free.clear()
        elif not self._free.is_set():
            self._freed += 1
            self._free.set()

    def ask(self, quorum: Callable[[], Any]) -> Any:
        """A quorum, however long this replica is left out. Raises what `quorum` raises at any other time."""
        while True:
            self._free.wait()
            freed = self._freed
            try:
                return quorum()
            except (RuntimeError, OSError):  # also TimeoutError
                if self._free.is_set() and freed == self._freed:
                    raise
