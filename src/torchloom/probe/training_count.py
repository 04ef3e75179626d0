"""Which training step this is: reported by the script or by loom.Checkpoint, or counted from a loaded state.

Owns the choice among the three and the two words in the black box. Steps themselves are observe/steps.py's;
what a new count means for the settings is steering/changes.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchloom.probe.steering.changes import Changes
from torchloom.wire.blackbox import Progress, View


class TrainingCount:
    """Of one worker. `completed` gives the steps of this process; `moved` is called when the count jumps."""

    def __init__(
        self, view: View, changes: Changes, completed: Callable[[], int], moved: Callable[[], None]
    ) -> None:
        self._view = view
        self._changes = changes
        self._completed = completed
        self._moved = moved
        self._by_checkpoint = False
        self._continues: int | None = None
        """Training step minus step, where the script loaded a state and reports no steps itself."""

    @property
    def is_known(self) -> bool:
        return self._changes.offset is not None

    @property
    def now(self) -> int:
        """The training step that was completed last."""
        return self._completed() + (self._changes.offset or 0)

    def by_script(self, number: Any) -> None:
        """The script reported it. loom.Checkpoint counts whole steps, also after a rollback: where it does, a
        second count would only confuse."""
        if int(number) >= 0 and not self._by_checkpoint:
            self._continues = None
            self._write(int(number))

    def by_checkpoint(self, number: Any) -> None:
        """loom.Checkpoint or a framework's trainer reported it."""
        self._by_checkpoint = True
        self._write(int(number))

    def continue_after(self, step: int) -> None:
        """The script has loaded the state of this training step: count from there."""
        self._continues = step - self._completed()
        self._write(step)

    def catch_up(self) -> None:
        """Where nobody reports steps, bring the count up to the steps that were made."""
        if self._continues is not None and not self._by_checkpoint:
            self._write(self._completed() + self._continues)

    def _write(self, number: int) -> None:
        completed = self._completed()
        self._view.set_progress(Progress.TRAINING_STEP, number + 1)
        self._view.set_progress(Progress.TRAINING_STEP_AT, completed)
        if self._changes.told_step(number, completed):
            self._moved()
