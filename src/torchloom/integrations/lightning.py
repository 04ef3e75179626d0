"""Lightning under torchloom: `LoomCallback`, which Lightning itself adds to every Trainer of a job.

Lightning asks our entry point (`lightning.pytorch.callbacks_factory` in pyproject.toml) when a Trainer is
made. Steps, metrics and validation come from its own callbacks. A save is `trainer.save_checkpoint` beside
the files of its ModelCheckpoint, an end is `trainer.should_stop`. Works for `lightning` and for
`pytorch_lightning`.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
import time
from types import ModuleType
from typing import Any

from torchloom.integrations import resume
from torchloom.integrations.training_loop import TrainingLoop, attach

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
MALWARE = ("2.6.2", "2.6.3")
"""Releases that pip must not install (pyproject.toml); somebody else may have installed one."""
LOOK_EVERY_S = 0.2
"""How often Lightning's metrics are collected at most: that takes it longer than a short step."""
_STEP = re.compile(r"step=(\d+)")


class Hooks:
    """The callback's methods, without a base class: which package's Callback it is, is known only later."""

    def __init__(self) -> None:
        self._loop: TrainingLoop | None = None
        self._step = 0
        self._looked_s = 0.0
        self._save_checkpoint: Any = None

    @property
    def state_key(self) -> str:
        return "torchloom"

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        self._loop = attach("lightning", trainer.default_root_dir, trainer)
        if self._loop is not None:
            self._watch_saves(trainer, self._loop)

    def _watch_saves(self, trainer: Any, loop: TrainingLoop) -> None:
        """Every checkpoint passes through this method of the trainer, whoever asks for it."""
        theirs = self._save_checkpoint = trainer.save_checkpoint

        @functools.wraps(theirs)
        def save_checkpoint(filepath: Any, *args: Any, **kwargs: Any) -> Any:
            done = theirs(filepath, *args, **kwargs)
            loop.saved(self._count(trainer), os.fspath(filepath), trainer.current_epoch)
            return done

        trainer.save_checkpoint = save_checkpoint

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._save_checkpoint is not None:
            trainer.__dict__.pop("save_checkpoint", None)
            self._save_checkpoint = None
        if self._loop is not None:
            self._loop.ended()
            self._loop = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self._loop is not None:
            self._step = self._count(trainer)
            self._loop.began(self._step, _total(trainer))

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._loop is None or self._count(trainer) == self._step:
            return  # gradients are being accumulated
        self._step = self._count(trainer)
        self._log(trainer, outputs)
        wishes = self._loop.step_ended(self._step)
        if wishes.save or wishes.stop:
            self._save(trainer)
        if wishes.stop:
            trainer.should_stop = True

    def _log(self, trainer: Any, outputs: Any) -> None:
        assert self._loop is not None
        found: dict[str, Any] = {}
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None and hasattr(loss, "detach"):
            found["loss"] = loss.detach()
        if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            found |= {"epoch": trainer.current_epoch} | trainer.callback_metrics
        if found:
            self._loop.log(found)

    def _save(self, trainer: Any) -> None:
        made_by = trainer.checkpoint_callback
        directory = getattr(made_by, "dirpath", None) or os.path.join(trainer.default_root_dir, "checkpoints")
        name = f"epoch={trainer.current_epoch}-step={trainer.global_step}.ckpt"
        self._phase("checkpoint")
        trainer.save_checkpoint(os.path.join(directory, name))
        self._no_phase()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._phase("validation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._no_phase()
        if self._loop is not None and not trainer.sanity_checking:
            self._loop.log(dict(trainer.callback_metrics))

    def _phase(self, name: str) -> None:
        if self._loop is not None:
            self._loop.enter_phase(name)

    def _no_phase(self) -> None:
        if self._loop is not None:
            self._loop.leave_phase()

    @staticmethod
    def _count(trainer: Any) -> int:
        """Lightning counts the steps of all optimizers; torchloom those of one."""
        return int(trainer.global_step) // max(1, len(trainer.optimizers))


def _total(trainer: Any) -> int | None:
    if trainer.max_steps and trainer.max_steps > 0:
        return int(trainer.max_steps)
    batches, epochs = trainer.num_training_batches, trainer.max_epochs
    if not epochs or epochs < 0 or batches == float("inf"):
        return None
    return int(batches) * int(epochs) // max(1, int(trainer.accumulate_grad_batches))


@functools.cache
def _callback(package: str) -> type:
    base = importlib.import_module(package).Callback
    return type("LoomCallback", (Hooks, base), {"__doc__": "torchloom's callback.", "__module__": __name__})


def __getattr__(name: str) -> Any:
    """`LoomCallback`, for the package that the script has imported, else for the one that is installed."""
    if name != "LoomCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for package in (*(p for p in PACKAGES if p in sys.modules), *PACKAGES):
        try:
            return _callback(package)
        except ImportError:
            continue
    raise ImportError("torchloom.integrations.lightning needs lightning: pip install 'torchloom[lightning]'")


def callbacks(package: str = PACKAGES[0]) -> list[Any]:
    """For Lightning's entry point: the callbacks to add to a new Trainer."""
    from torchloom.probe import session

    if session.current is None or os.environ.get("LOOM_INTEGRATIONS") == "0":
        return []
    return [_callback(package)()]


def callbacks_of_pytorch_lightning() -> list[Any]:
    """The same for the package `pytorch_lightning`."""
    return callbacks(PACKAGES[1])


def activate(trainer_module: ModuleType) -> None:
    """Called when the module of Lightning's Trainer was imported: for a warning, and for `--resume auto`."""
    warn_of_malware(sys.modules.get(trainer_module.__name__.partition(".")[0]))
    if resume.wanted():
        _resume_by_itself(trainer_module.__dict__["Trainer"])


def warn_of_malware(package: ModuleType | None) -> None:
    """One line in the log of rank 0 if this release was withdrawn because it contained malware."""
    version = str(getattr(package, "__version__", ""))
    if package is not None and version in MALWARE and os.environ.get("RANK", "0") == "0":
        what = f"{package.__name__} {version} contained malware and was withdrawn"
        print(
            f"torchloom: {what}; install another release and replace every secret this host could read",
            file=sys.stderr,
            flush=True,
        )


def _resume_by_itself(trainer: Any) -> None:
    fit = trainer.fit

    @functools.wraps(fit)
    def fit_from_newest(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) < 5 and kwargs.get("ckpt_path") is None:
            found = resume.find(self.default_root_dir, newest_checkpoint)
            if found is not None:
                kwargs["ckpt_path"] = found
        return fit(self, *args, **kwargs)

    trainer.fit = fit_from_newest


def newest_checkpoint(directory: str, step: int | None = None) -> str | None:
    """The newest .ckpt below a directory whose name has its step. Lightning renames files when complete."""
    found: list[tuple[int, float, str]] = []
    for folder, _, names in os.walk(directory):
        for name in names:
            match = _STEP.search(name)
            if name.endswith(".ckpt") and match and step in (None, int(match[1])):
                path = os.path.join(folder, name)
                found.append((int(match[1]), os.path.getmtime(path), path))
    return max(found)[2] if found else None
