"""A training loop written with accelerate under torchloom: its logs, its saved states, and where it resumes.

accelerate has no callbacks: the loop is the script's own. So methods of `Accelerator` (`prepare`, `log`,
`save_state`, `load_state`) are followed, each after it has done its work. Steps are seen at the optimizer, as
in any script. What is asked of the loop happens after `optimizer.zero_grad()` of a step, which accelerate's
loops call between two steps: `loom checkpoint` is `accelerator.save_state` beside the states that the script
saves, `loom stop` saves first if the script saves at all. `--resume auto` loads the newest state before the
first batch, unless the script has loaded one; the loop itself still counts from where the script begins it.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torchloom.checkpoint.store import trainer_index
from torchloom.integrations import resume
from torchloom.integrations.training_loop import TrainingLoop, index_of
from torchloom.probe import session as sessions
from torchloom.probe.steering.stopping import StopAtBoundary

FRAMEWORK = "accelerate"


class Loop:
    """The loop of this process. Its `training` is steered once a step was made and no other trainer is."""

    def __init__(self, session: sessions.Session, accelerator: Any) -> None:
        self._session = session
        self._accelerator = weakref.ref(accelerator)
        self._made = 0
        self._saved: tuple[int, str] | None = None
        """Step and path of the newest state that was saved or loaded."""
        self._loaded = False
        self._training: TrainingLoop | None = None

    def training(self, path: str = "") -> TrainingLoop:
        if self._training is None:
            directory = os.path.dirname(path) or self._directory()
            self._training = TrainingLoop(self._session, FRAMEWORK, directory, self)
        return self._training

    def _directory(self) -> str:
        """Where the script keeps its states, as far as is known."""
        if self._saved is not None:
            return os.path.dirname(self._saved[1])
        return os.path.abspath(getattr(self._accelerator(), "project_dir", None) or ".")

    # -- what the script does -------------------------------------------------------------------
    def saved(self, path: str) -> None:
        step = self._session.training_step()
        self._saved = (step, os.path.abspath(path))
        self.training(self._saved[1]).saved(step, path)

    def loaded(self, given: str | None) -> None:
        """Counts continue where the loaded state was saved, if torchloom saw that."""
        self._loaded = True
        known = trainer_index.read(index_of(given or self._directory()))
        if given:
            known = [one for one in known if one.path == os.path.abspath(given)]
        found = trainer_index.newest(known)
        if found is not None:
            self._saved = (found.step, found.path)
            self.training(found.path).restored(found.step)

    def begins(self) -> None:
        """The first batch is about to be drawn."""
        if self._loaded or self._session.steps.completed or not resume.wanted():
            return
        self._loaded = True
        found = resume.find(self._directory(), lambda directory, step: None)
        accelerator = self._accelerator()
        if found is not None and accelerator is not None:
            accelerator.load_state(found)
            accelerator.print(f"torchloom: loaded {found}; the script's own loop begins from its start")

    def between_steps(self) -> None:
        """A step is over and the next one has not begun. May end the script."""
        completed = self._session.steps.completed
        if completed == self._made:
            return  # gradients are being accumulated
        self._made = completed
        if not self._session.attach_trainer(self.training()):
            return
        wishes = self.training().step_ended(self._session.training_step())
        if wishes.save or (wishes.stop and self._saved is not None):
            self._save()
        if wishes.stop:
            raise StopAtBoundary

    def _save(self) -> None:
        accelerator = self._accelerator()
        if accelerator is None:
            return
        if accelerator.project_configuration.automatic_checkpoint_naming:
            accelerator.save_state()
            return
        step = self._session.training_step()
        accelerator.save_state(os.path.join(self._directory(), named_like(self._saved, step)))


def named_like(saved: tuple[int, str] | None, step: int) -> str:
    """A name as the script's own, if that has the step in it."""
    if saved is not None:
        name = os.path.basename(saved[1])
        found = list(re.finditer(rf"(?<!\d){saved[0]}(?!\d)", name))
        if found:
            return name[: found[-1].start()] + str(step) + name[found[-1].end() :]
    return f"step_{step}"


_loops: dict[int, Loop] = {}


def activate(accelerator_module: ModuleType) -> None:
    """Follow every Accelerator of this process; called when `accelerate.accelerator` was imported."""
    accelerator = accelerator_module.__dict__["Accelerator"]
    _follow(accelerator, "prepare", _prepared)
    _follow(accelerator, "log", _logged)
    _follow(accelerator, "save_state", _saved)
    _follow(accelerator, "load_state", _loaded)
    _follow(sys.modules["accelerate.optimizer"].__dict__["AcceleratedOptimizer"], "zero_grad", _zeroed)
    loaders = sys.modules["accelerate.data_loader"].__dict__
    for kind in ("DataLoaderShard", "DataLoaderDispatcher"):
        _follow(loaders[kind], "__iter__", _iterates, first=True)


def _follow(owner: Any, name: str, report: Callable[..., None], *, first: bool = False) -> None:
    """Call `report` after each call of this method, or before it (`first`)."""
    theirs = getattr(owner, name)
    if hasattr(theirs, "__wrapped_by_torchloom__"):
        return

    @functools.wraps(theirs)
    def followed(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = None if first else theirs(self, *args, **kwargs)
        session = sessions.current
        if session is not None and not _is_trainers_own(session):
            session.guard.wrap(report)(session, self, done, args, kwargs)
        return theirs(self, *args, **kwargs) if first else done

    followed.__wrapped_by_torchloom__ = True  # type: ignore[attr-defined]
    setattr(owner, name, followed)


def _is_trainers_own(session: sessions.Session) -> bool:
    """Whether another framework's trainer uses the Accelerator: then it reports all of this itself."""
    return session.trains_with not in ("", FRAMEWORK)


def _prepared(session: sessions.Session, accelerator: Any, done: Any, args: Any, kwargs: Any) -> None:
    _loops.setdefault(id(session), Loop(session, accelerator))


def _logged(session: sessions.Session, accelerator: Any, done: Any, args: Any, kwargs: Any) -> None:
    values = args[0] if args else kwargs.get("values")
    if isinstance(values, dict):
        session.log({str(name): value for name, value in values.items()})


def _saved(session: sessions.Session, accelerator: Any, done: Any, args: Any, kwargs: Any) -> None:
    path = done if isinstance(done, str) else args[0] if args else kwargs.get("output_dir")
    if path:
        _loops.setdefault(id(session), Loop(session, accelerator)).saved(os.fspath(path))


def _loaded(session: sessions.Session, accelerator: Any, done: Any, args: Any, kwargs: Any) -> None:
    given = args[0] if args else kwargs.get("input_dir")
    loop = _loops.setdefault(id(session), Loop(session, accelerator))
    loop.loaded(os.fspath(given) if given else None)


def _zeroed(session: sessions.Session, optimizer: Any, done: Any, args: Any, kwargs: Any) -> None:
    loop = _loops.get(id(session))
    if loop is not None:
        loop.between_steps()


def _iterates(session: sessions.Session, loader: Any, done: Any, args: Any, kwargs: Any) -> None:
    loop = _loops.get(id(session))
    if loop is not None:
        loop.begins()
