"""Knows when dynamo compiles, from its own callbacks: a worker that compiles is slow, not stuck.

Also keeps dynamo from compiling the probe. Imports no torch._dynamo: that takes seconds.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from torchloom.probe.guard import Guard
from torchloom.probe.observe.phases import Phases
from torchloom.wire.blackbox import WorkerPhase


def keep_dynamo_out(function: Callable[..., Any]) -> None:
    """Have frames of this function, and all it calls, run as they are inside a compiled region.

    dynamo would compile them otherwise, and again and again. This is a mark on the code object and costs
    nothing per call; it needs no torch._dynamo.
    """
    marks = importlib.import_module("torch._C._dynamo.eval_frame")
    if hasattr(marks, "set_code_exec_strategy"):
        skip = marks._FrameAction.SKIP
        marks.set_code_exec_strategy(function.__code__, marks._FrameExecStrategy(skip, skip))
    else:  # torch < 2.7
        marks.skip_code(function.__code__)


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
            self._before = self._phases.set(int(WorkerPhase.COMPILING), time.monotonic_ns())

    def _finished(self, _args: object = None) -> None:
        if self._before is not None:
            self._phases.set(self._before, time.monotonic_ns())
            self._before = None
