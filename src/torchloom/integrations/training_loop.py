"""One training loop of a framework under torchloom: reports what it does, and carries wishes to it.

The framework's callback calls `began`, `step_ended`, `saved`, `log` and `ended`; the probe calls the rest. A
wish (save, stop) that the ranks agreed on is given to the callback at the end of the step, which is the same
on all ranks, and the framework grants it in its own way. Owns no file but the index of what was saved. Every
entry that a callback calls is guarded: an error of ours means less telemetry.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torchloom.checkpoint.store import trainer_index
from torchloom.checkpoint.store.trainer_index import TrainerCheckpoint
from torchloom.errors import CheckpointError
from torchloom.probe import session as sessions
from torchloom.probe.session import Session
from torchloom.probe.steering.saving import HELD


class Wishes(NamedTuple):
    """What the callback must ask of its trainer at the end of a step."""

    save: bool = False
    stop: bool = False


class TrainingLoop:
    """The loop of one trainer in this process. `framework` names it for people; `owner` is the trainer."""

    def __init__(self, session: Session, framework: str, directory: str, owner: object) -> None:
        self._session = session
        self.framework = framework
        self._owner = weakref.ref(owner)
        self.failures = 0
        self.why_failed = ""
        self._report: dict[str, object] = {"name": os.environ.get("LOOM_JOB", "job"), "framework": framework}
        self._works: list[Callable[[int], None]] = []
        self._save = False
        self._asked = False
        """Somebody waits for the next save."""
        self._stop_at: int | None = None
        self._metrics: dict[str, float] = {}
        self._phase: int | None = None
        self._index = index_of(directory)
        self._report |= {"uri": directory, "index": str(self._index)}
        guard = session.guard.wrap
        self.began = guard(self._began)
        self.restored = guard(self._restored)
        self.saved = guard(self._saved)
        self.log = guard(self._log)
        self.ended = guard(self._ended)
        self.enter_phase = guard(self._enter_phase)
        self.leave_phase = guard(self._leave_phase)

    @property
    def owner(self) -> object:
        """What this loop is the loop of; None if that is gone."""
        return self._owner()

    def is_of(self, owner: object) -> bool:
        return owner is not None and self._owner() is owner

    # -- what the framework's callback reports --------------------------------------------------
    def _began(self, step: int, total: int | None) -> None:
        """Training begins, after `step` steps that a checkpoint brought back."""
        if step:
            self._session.tell_training_step(step)
        self._session.tell_step(-1, total)
        self._tell_restored(step)

    def _tell_restored(self, step: int) -> None:
        restored = ""
        if step:
            known = trainer_index.newest(trainer_index.read(self._index), step)
            restored = known.name if known is not None else f"step-{step}.g0"
        self._tell(opened=True, restored=restored, restored_from="the store")

    def _restored(self, step: int) -> None:
        """The script has loaded the state of `step`; nobody reports its steps one by one."""
        self._session.continue_after(step)
        self._tell_restored(step)

    def step_ended(self, step: int, total: int | None = None) -> Wishes:
        """A step is complete: let what the ranks agreed on happen here. May end a script that is lost."""
        session = self._session
        session.tell_training_step(step)
        if total is not None:
            session.tell_step(-1, total)
        works, self._works = self._works, []
        for work in works:
            work(step)
        save, self._save = self._save, False
        stop = self._stop_at is not None or bool(session.guard.wrap(lambda: session.is_over)())
        self._asked = self._asked or save
        return Wishes(save=save, stop=stop)

    def _saved(self, step: int, path: str, epoch: float | None = None) -> None:
        """The framework has finished a checkpoint of its own, on all ranks."""
        asked, self._asked = self._asked, False
        if int(os.environ.get("RANK") or 0) != 0:
            return
        at_s = time.time()
        made = TrainerCheckpoint(
            step=step,
            generation=int(os.environ.get("LOOM_GENERATION") or 0),
            path=os.path.abspath(path),
            at_s=at_s,
            size=trainer_index.size_of(path),
            world=int(os.environ.get("WORLD_SIZE") or 1),
            epoch=int(epoch or 0),
            metrics=dict(self._metrics),
        )
        trainer_index.record(self._index, made)
        about = {"name": made.name, "step": step, "at_ns": int(at_s * 1e9), "size": made.size}
        self._tell(opened=True, saved=about | {"took_s": 0.0, "asked": asked}, failing=None)

    def _log(self, metrics: Mapping[str, Any]) -> None:
        self._session.log(metrics)
        for name, value in metrics.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._metrics[name] = float(value)

    def in_force(self, name: str, own: float) -> float:
        """The value that steps use where the script has `own`."""
        found = self._session.guard.wrap(self._session.held_value, otherwise=own)(name, own)
        return float(found) if isinstance(found, int | float) else own

    def _ended(self) -> None:
        self._leave_phase()
        self._session.detach_trainer(self)

    def _enter_phase(self, name: str) -> None:
        self._leave_phase()
        self._phase = self._session.enter_phase(name)

    def _leave_phase(self) -> None:
        before, self._phase = self._phase, None
        if before is not None:
            self._session.leave_phase(before)

    def _tell(self, **changes: object) -> None:
        self._report |= changes
        self._session.tell_checkpoints(self._report)

    # -- what the probe asks for, as it asks loom.Checkpoint ------------------------------------
    def at_end(self, work: Callable[[int], None]) -> None:
        """Call `work(step)` once, at the end of the step in progress."""
        self._works.append(work)

    def save_soon(self, step: int, *, held: bool = False) -> None:
        if held:
            raise CheckpointError(HELD)
        self._save = True

    def withdraw_save(self) -> None:
        self._save = False

    def look(self) -> None:
        """Saves of a trainer are not in flight: it trains again when they are done."""

    def stop_soon(self, completed: int) -> bool:
        """End the loop after the step that begins now; False if it did not end when it was asked before."""
        if self._stop_at is not None:
            return self._stop_at == completed
        self._stop_at = completed
        return True


def attach(framework: str, directory: str, owner: object) -> TrainingLoop | None:
    """The loop of a trainer that is about to train; None without torchloom, or if another callback of the
    same trainer (`owner` names it) has it already."""
    session = sessions.current
    if session is None or session.guard.off:
        return None

    def make() -> TrainingLoop | None:
        made = TrainingLoop(session, framework, os.path.abspath(directory or "."), owner)
        return made if session.attach_trainer(made) else None

    made: TrainingLoop | None = session.guard.wrap(make)()
    return made


def index_of(directory: str) -> Path:
    """Where the saves of this job are recorded: beside its other checkpoints, else in the trainer's own
    directory."""
    kept = os.environ.get("LOOM_CHECKPOINT_DIR", "").strip()
    job = os.environ.get("LOOM_JOB", "job")
    where = kept if kept and "://" not in kept else directory
    return trainer_index.index_path(os.path.abspath(where), job)
