"""Hugging Face Trainer under torchloom: `LoomCallback`, added to every Trainer of a job by itself.

Steps, epoch, logs and saves come from the Trainer's own callbacks. A save is asked for with
`control.should_save`, an end with `control.should_training_stop`, so the Trainer saves, evaluates and ends as
it always does. Learning rates in its logs are the values in force, also if `loom set` changed them.
"""

from __future__ import annotations

import os
import re
from types import ModuleType
from typing import Any

from torchloom.integrations import resume
from torchloom.integrations.training_loop import TrainingLoop, attach

try:
    from transformers.trainer_callback import TrainerCallback
except ImportError as error:
    needs = "torchloom.integrations.transformers needs transformers: pip install 'torchloom[transformers]'"
    raise ImportError(needs) from error

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


class LoomCallback(TrainerCallback):
    """Add it to a Trainer where torchloom does not do so by itself. Without torchloom it does nothing."""

    def __init__(self) -> None:
        self._loop: TrainingLoop | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._loop = attach("transformers", args.output_dir, state)
        if self._loop is not None:
            self._loop.began(state.global_step, state.max_steps)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._loop is not None:
            self._loop.leave_phase()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._loop is None:
            return
        wishes = self._loop.step_ended(state.global_step)
        if wishes.save or wishes.stop:
            control.should_save = True
        if wishes.stop:
            control.should_training_stop = True
        self._name_phase(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._loop is not None:
            self._name_phase(control)

    def _name_phase(self, control: Any) -> None:
        """What the Trainer does next may take long."""
        assert self._loop is not None
        if control.should_evaluate:
            self._loop.enter_phase("evaluate")
        elif control.should_save:
            self._loop.enter_phase("checkpoint")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._loop is not None:
            self._loop.leave_phase()
            if control.should_save:
                self._loop.enter_phase("checkpoint")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._loop is not None:
            path = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
            self._loop.saved(state.global_step, path, state.epoch)
            self._loop.leave_phase()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self._loop is None or not isinstance(logs, dict):
            return
        rate = logs.get("learning_rate")
        if isinstance(rate, float):
            in_force = self._loop.in_force("lr", rate)
            logs["learning_rate"] = in_force
            if state.log_history and "learning_rate" in state.log_history[-1]:
                state.log_history[-1]["learning_rate"] = in_force
        values = {"epoch": state.epoch} | logs
        self._loop.log({name: value for name, value in values.items() if isinstance(value, int | float)})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._loop is not None:
            self._loop.ended()
            self._loop = None


class AddedByTorchloom(LoomCallback):
    """The one that torchloom adds; one that the script added as well stays idle."""


def activate(trainer_module: ModuleType) -> None:
    """Add the callback to every Trainer of this process; called when `transformers.trainer` was imported."""
    module: Any = trainer_module
    if AddedByTorchloom not in module.DEFAULT_CALLBACKS:
        module.DEFAULT_CALLBACKS.append(AddedByTorchloom)
    if resume.wanted():
        _resume_by_itself(module.Trainer)


def _resume_by_itself(trainer: Any) -> None:
    train = trainer.train

    def train_from_newest(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        if resume_from_checkpoint in (None, False, True):
            resume_from_checkpoint = resume.find(self.args.output_dir, complete_checkpoint)
        return train(self, resume_from_checkpoint, *args, **kwargs)

    train_from_newest.__wrapped__ = train  # type: ignore[attr-defined]
    trainer.train = train_from_newest


def complete_checkpoint(directory: str, step: int | None = None) -> str | None:
    """The newest checkpoint in an output directory that was written to its end: its state is written last."""
    found: list[tuple[int, str]] = []
    try:
        names = os.listdir(directory)
    except OSError:
        return None
    for name in names:
        match = _CHECKPOINT.fullmatch(name)
        path = os.path.join(directory, name)
        if (
            match
            and step in (None, int(match[1]))
            and os.path.exists(os.path.join(path, "trainer_state.json"))
        ):
            found.append((int(match[1]), path))
    return max(found)[1] if found else None
