"""What the worker is doing (starting, training, compiling, …), kept in three words and a name.

The base phase goes from STARTING to TRAINING with the first step; others lie over it for a while and give
back what was before. Times are passed in. Callers decide which thread may change the phase.
dynamo's own callbacks say when it compiles: a worker that compiles is slow, not stuck. dynamo is also kept
from compiling the probe. Imports no torch._dynamo: that takes seconds.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from torchloom.probe.guard import Guard
from torchloom.wire.blackbox import PHASE_NAME, PROGRESS_AT, Progress, View, WorkerPhase

_STARTING = int(WorkerPhase.STARTING)
_TRAINING = int(WorkerPhase.TRAINING)
_PHASE = PROGRESS_AT // 8 + Progress.PHASE
_SINCE = PROGRESS_AT // 8 + Progress.PHASE_SINCE_NS
_ACTIVITY = PROGRESS_AT // 8 + Progress.LAST_ACTIVITY_NS


class Phases:
    """Writes the phase of this worker."""

    def __init__(self, view: View, now_ns: int) -> None:
        self._view = view
        self._words = view.words
        self._names: list[str] = []
        self._training = False
        self.now = int(WorkerPhase.NONE)
        self.set(_STARTING, now_ns)

    def set(self, phase: int, now_ns: int) -> int:
        """Change the phase; returns the one before, to be given back later."""
        before = self.now
        if phase == _STARTING and self._training:
            phase = _TRAINING
        self.now = phase
        words = self._words
        words[_SINCE] = now_ns
        words[_PHASE] = phase
        words[_ACTIVITY] = now_ns
        return before

    def training_began(self, now_ns: int) -> None:
        """The first step is there: STARTING is over, also for whatever lies over it now."""
        self._training = True
        if self.now == _STARTING:
            self.set(_TRAINING, now_ns)

    def enter_named(self, name: str, now_ns: int) -> int:
        """Begin a phase of the user's; phases nest."""
        self._names.append(name)
        self._write_name(name)
        return self.set(int(WorkerPhase.USER), now_ns)

    def leave_named(self, before: int, now_ns: int) -> None:
        self._names.pop()
        if self._names:
            self._write_name(self._names[-1])
        self.set(before, now_ns)

    def _write_name(self, name: str) -> None:
        # A character cut in two is dropped, so that the reader can always decode.
        text = name.encode("utf-8", "replace")[: PHASE_NAME.capacity].decode("utf-8", "ignore")
        self._view.write_blob(PHASE_NAME, text.encode())


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
