"""What the worker is doing (starting, training, waiting for data, …), kept in three words and a name.

The base phase goes from STARTING to TRAINING with the first step; others lie over it for a while and give
back what was before. Times are passed in. Callers decide which thread may change the phase.
"""

from __future__ import annotations

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
