"""A training loop written with accelerate under torchloom: its logs, its saved states, and where it resumed.

accelerate has no callbacks: the loop is the script's own. So three public methods of `Accelerator` are
followed (`log`, `save_state`, `load_state`), each after it has done its work. Steps are seen at the
optimizer, as in any script, and `loom set`, `pause` and `stop` work as there. When to save is the script's
decision.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torchloom.checkpoint.store import trainer_index
from torchloom.integrations.training_loop import TrainingLoop, index_of
from torchloom.probe import session as sessions

_loops: dict[int, TrainingLoop] = {}


def activate(accelerator_module: ModuleType) -> None:
    """Follow every Accelerator of this process; called when `accelerate.accelerator` was imported."""
    accelerator = accelerator_module.__dict__["Accelerator"]
    _follow(accelerator, "log", _logged)
    _follow(accelerator, "save_state", _saved)
    _follow(accelerator, "load_state", _loaded)


def _follow(owner: Any, name: str, report: Callable[..., None]) -> None:
    theirs = getattr(owner, name)
    if hasattr(theirs, "__wrapped_by_torchloom__"):
        return

    @functools.wraps(theirs)
    def followed(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = theirs(self, *args, **kwargs)
        session = sessions.current
        if session is not None and not _is_trainers_own(session):
            session.guard.wrap(report)(session, self, done, args, kwargs)
        return done

    followed.__wrapped_by_torchloom__ = True  # type: ignore[attr-defined]
    setattr(owner, name, followed)


def _is_trainers_own(session: sessions.Session) -> bool:
    """Whether a framework's trainer uses the Accelerator: then it reports all of this itself."""
    return session.has_trainer


def _logged(session: sessions.Session, accelerator: Any, done: Any, args: Any, kwargs: Any) -> None:
    values = args[0] if args else kwargs.get("values")
    if isinstance(values, dict):
        session.log({str(name): value for name, value in values.items()})


def _saved(session: sessions.Session, accelerator: Any, done: Any, args: Any, kwargs: Any) -> None:
    path = done if isinstance(done, str) else args[0] if args else kwargs.get("output_dir")
    if path:
        _loop(session, os.fspath(path)).saved(session.training_step(), os.fspath(path))


def _loaded(session: sessions.Session, accelerator: Any, done: Any, args: Any, kwargs: Any) -> None:
    """Counts continue where the loaded state was saved, if torchloom saw that."""
    given = args[0] if args else kwargs.get("input_dir")
    index = index_of(os.fspath(given) if given else ".")
    known = trainer_index.read(index)
    if given:
        known = [one for one in known if one.path == os.path.abspath(os.fspath(given))]
    found = trainer_index.newest(known)
    if found is not None:
        _loop(session, found.path).restored(found.step)


def _loop(session: sessions.Session, path: str) -> TrainingLoop:
    """Reports only: the loop is the script's, so nothing can be asked of it."""
    made = _loops.get(id(session))
    if made is None:
        directory = os.path.dirname(os.path.abspath(path))
        made = _loops[id(session)] = TrainingLoop(session, "accelerate", directory)
    return made
