"""Shows that the script is making a process group: until all ranks have come there, nothing is recorded.

Wraps `init_process_group` and `new_group`, the two places where ranks wait for each other outside of
collectives. Only the phase is set, only on the thread that trains; arguments and results are not looked at.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from torchloom.probe.guard import Guard
from torchloom.probe.observe.phases import Phases
from torchloom.wire.blackbox import WorkerPhase

_NAMES = ("init_process_group", "new_group")
_JOINING = int(WorkerPhase.JOINING)


class Joining:
    """Sets the phase of one worker while it waits for its peers to come."""

    def __init__(self, phases: Phases, guard: Guard) -> None:
        self._phases = phases
        self._thread = threading.get_ident()
        self._begin = guard.wrap(self._began)
        self._finish = guard.wrap(self._finished)
        self._undo: list[tuple[Any, str, Any]] = []

    def install(self, distributed: Any) -> None:
        """Wrap the functions of torch.distributed, where scripts and where torch itself find them."""
        inner = sys.modules.get("torch.distributed.distributed_c10d")
        for name in _NAMES:
            original = getattr(inner, name, None)
            if original is None:
                continue
            shown = self._shown(original)
            for module in (inner, distributed):
                if getattr(module, name, None) is original:
                    setattr(module, name, shown)
                    self._undo.append((module, name, original))

    def remove(self) -> None:
        for module, name, original in self._undo:
            setattr(module, name, original)
        self._undo.clear()

    def _shown(self, original: Callable[..., Any]) -> Callable[..., Any]:
        begin, finish = self._begin, self._finish

        @functools.wraps(original)
        def shown(*args: Any, **named: Any) -> Any:
            before = begin()
            if before is None:
                return original(*args, **named)
            try:
                return original(*args, **named)
            finally:
                finish(before)

        return shown

    def _began(self) -> int | None:
        if self._phases.now == _JOINING or threading.get_ident() != self._thread:
            return None
        return self._phases.set(_JOINING, time.monotonic_ns())

    def _finished(self, before: int) -> None:
        self._phases.set(before, time.monotonic_ns())
