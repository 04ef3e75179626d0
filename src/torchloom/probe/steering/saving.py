"""Saving and going back when somebody outside wants it, through the `loom.Checkpoint` that the script uses,
or through the trainer of a framework that saves and ends by itself (torchloom.integrations).

Owns finding it and speaking to it at the place between the steps. Imports nothing of it: a script that has
none has not loaded torch's part of torchloom either.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from torchloom.errors import CheckpointError
from torchloom.model.transaction.messages import AttemptId
from torchloom.wire.blackbox import Progress, View

_LIVE = "torchloom.checkpoint.live"
HELD = "the job is paused inside a step of its trainer, which saves only between steps; resume it first"


class ScriptCheckpoint:
    """The checkpoint of this process, if there is one."""

    def __init__(self, view: View, config_version: Callable[[], int]) -> None:
        self._view = view
        self._config_version = config_version
        self._prepared: Any = None
        self._saved: tuple[int, int, int] | None = None
        """Of the last requested save: steps made, training step, failures before it."""
        self._asking = False
        self.trainer: Any = None
        """The training loop of a framework, while it trains (torchloom.integrations.training_loop)."""

    def look(self) -> Any:
        """The one in use, or None."""
        live = sys.modules.get(_LIVE)
        if live is None:
            return self.trainer
        live.set_config_version(self._config_version)
        return live.current() or self.trainer

    def ends_itself(self, completed: int) -> bool:
        """Whether a framework's trainer ends its loop after the step that begins at this boundary. Without
        one, or if it did not end when it was asked before, the script must be ended here."""
        return self.trainer is not None and bool(self.trainer.stop_soon(completed))

    def problem(self, completed: int, *, going_back: bool = False, held: bool = False) -> str:
        """Why this script can neither save nor go back on request, or not while it is paused (`held`); empty
        when it can."""
        found = self.look()
        if found is None:
            return "the script uses no loom.Checkpoint, so it has no state to save or to go back to"
        if going_back and found is self.trainer:
            return f"the trainer of {found.framework} loads a checkpoint only when it starts"
        if held and found is self.trainer:
            return HELD
        told_at = self._view.progress(Progress.TRAINING_STEP_AT)
        if completed and told_at != completed:
            return "the script does not call loom.Checkpoint.step after every step"
        return ""

    def at_end(self, work: Callable[[], None]) -> None:
        """Have `work` called once, after the step in progress and before anything of the next one."""
        checkpoint = self.look()
        if checkpoint is not None:
            checkpoint.at_end(lambda step: work())

    def save(self, step: int, *, held: bool) -> None:
        """Have the state saved, which is that of training step `step`, or one soon after it; whoever asked
        waits until it is in the store, not the training.

        Paused ranks (`held`) may be asked again where they stand: the state that they have taken there is
        there, or on its way, unless it has failed since.
        """
        checkpoint = self.look()
        place = (self._view.progress(Progress.STEPS), step, checkpoint.failures)
        if place == self._saved:
            return
        self._asking = True
        checkpoint.save_soon(step, held=held)
        if checkpoint.failures > place[2]:  # not even begun on this rank
            raise CheckpointError(checkpoint.why_failed)
        self._saved = place

    def report(self) -> None:
        """While this rank is paused: say how a save ended that was still being written."""
        checkpoint = self.look()
        if checkpoint is not None:
            checkpoint.look()

    def go_back(self, attempt: AttemptId, values: Mapping[str, object]) -> int:
        """Load and take over the state that is wanted; its step. `keep` or `undo` must follow."""
        wanted = values.get("checkpoint") or values.get("step")
        prepared = self.look().prepare_roll_back(wanted, f"{attempt.version}.{attempt.attempt}")
        self._prepared = prepared
        prepared.apply()
        return int(prepared.step)

    def keep(self) -> None:
        """All ranks have rolled back, or have taken the requested state."""
        self._asking = False
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.keep()

    def undo(self) -> None:
        if self._asking:  # not every rank could
            self.look().withdraw_save()
        self._asking, self._saved = False, None
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.undo()
