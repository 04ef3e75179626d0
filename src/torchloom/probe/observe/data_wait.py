"""Time the training thread spends waiting for its data loaders.

Wraps the two places where a script waits: `DataLoader.__iter__` (starting data workers can take seconds) and
the `__next__` all of torch's loader iterators share. Only the outermost wait counts, and only on the thread
that trains: a prefetching thread's wait delays nobody. It does not look at batches or samplers.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

from torchloom.probe.guard import Guard
from torchloom.probe.observe.phases import Phases
from torchloom.wire.blackbox import PROGRESS_AT, Progress, View, WorkerPhase

_DATA_WAIT = PROGRESS_AT // 8 + Progress.DATA_WAIT_NS
_WAITING = int(WorkerPhase.DATA_WAIT)


class DataWait:
    """Adds up the waits of one worker."""

    def __init__(self, view: View, phases: Phases, guard: Guard) -> None:
        self._words = view.words
        self._phases = phases
        self._guard = guard
        self._waiting = False
        self._undo: list[tuple[Any, str, Any]] = []
        self.thread = threading.get_ident()
        """The thread that trains."""
        self.total_ns = 0

    def install(self, module: Any) -> None:
        """Wrap the classes of torch.utils.data.dataloader."""
        for owner, name in ((module.DataLoader, "__iter__"), (module._BaseDataLoaderIter, "__next__")):
            original = owner.__dict__[name]
            setattr(owner, name, self._timed(original))
            self._undo.append((owner, name, original))

    def remove(self) -> None:
        for owner, name, original in self._undo:
            setattr(owner, name, original)
        self._undo.clear()

    def _timed(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        begin = self._guard.wrap(self._begin)
        finish = self._guard.wrap(self._finish)

        @functools.wraps(original)
        def timed(self: Any) -> Any:
            began = begin()
            if began is None:
                return original(self)
            try:
                return original(self)
            finally:
                finish(*began)

        return timed

    def _begin(self) -> tuple[int, int] | None:
        if self._waiting or threading.get_ident() != self.thread:
            return None
        now_ns = time.monotonic_ns()
        before = self._phases.set(_WAITING, now_ns)
        self._waiting = True
        return now_ns, before

    def _finish(self, began_ns: int, before: int) -> None:
        self._waiting = False
        now_ns = time.monotonic_ns()
        self.total_ns += now_ns - began_ns
        self._words[_DATA_WAIT] = self.total_ns
        self._phases.set(before, now_ns)
