"""Knows when dynamo compiles, from its own callbacks: a worker that compiles is slow, not stuck."""

from __future__ import annotations

import time
from typing import Any

from torchloom.probe.guard import Guard
from torchloom.probe.phases import Phases
from torchloom.wire.blackbox import Phase


class Compiling:
    """Shows the COMPILING phase from the first pending compilation's start to the last one's end."""

    def __init__(self, phases: Phases, guard: Guard) -> None:
        self._phases = phases
        self._begin = guard.wrap(self._began)
        self._finish = guard.wrap(self._finished)
        self._before: int | None = None
        self._handler: Any = None

    def install(self, callback_module: Any) -> None:
        """Register with torch._dynamo.callback, given as a module."""
        self._handler = callback_module.callback_handler
        self.keep()

    def keep(self) -> None:
        """Register again when torch._dynamo.reset() has thrown the callbacks away."""
        handler = self._handler
        if handler is None:
            return
        if self._begin not in handler.start_callbacks:
            handler.register_start_callback(self._begin)
        if self._finish not in handler.end_callbacks:
            handler.register_end_callback(self._finish)

    def _began(self, _args: object = None) -> None:
        if self._before is None:
            self._before = self._phases.set(int(Phase.COMPILING), time.monotonic_ns())

    def _finished(self, _args: object = None) -> None:
        if self._before is not None:
            self._phases.set(self._before, time.monotonic_ns())
            self._before = None
