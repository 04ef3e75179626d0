"""torchtitan's trainer under torchloom: steps, metrics, its checkpoints, and an end in its own way.

torchtitan has no callbacks, so two of its classes are followed. `CheckpointManager.load` is called once
before the first step and `save` after every step, whether one is due or not: there the trainer's step is
reported and wishes are granted. `loom checkpoint` makes a save due; `loom stop` and `--max-steps` make this
step the last one of the trainer's own configuration and a save due: a whole one, because what torchtitan
saves after its last step by itself may be the model alone. `MetricsProcessor.log` gets the loss of the steps
that are logged, and is given the learning rate in force. torchtitan loads its newest checkpoint by itself at
every start, so `--resume auto` has nothing to add.

Written for 0.2 and 0.3, in which names and arguments are the same; docs/frameworks.md says what was run.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from torchloom.errors import CheckpointError
from torchloom.integrations.training_loop import TrainingLoop, attach
from torchloom.probe import session as sessions

FRAMEWORK = "torchtitan"
_FOLLOWED = "__wrapped_by_torchloom__"

_loops: dict[int, TrainingLoop] = {}
"""By the id of the session."""
_pending: list[int] = []
"""Steps whose save was begun and is not known to be complete."""


def activate(arrived: ModuleType) -> None:
    """Follow what this module of torchtitan defines; called when it was imported."""
    found = arrived.__dict__
    if "CheckpointManager" in found:
        manager = found["CheckpointManager"]
        _replace(manager, "load", _load)
        _replace(manager, "save", _save)
    if "MetricsProcessor" in found:
        _replace(found["MetricsProcessor"], "log", _log)


def _replace(owner: Any, name: str, ours: Any) -> None:
    theirs = getattr(owner, name)
    if hasattr(theirs, _FOLLOWED):
        return

    @functools.wraps(theirs)
    def followed(self: Any, *args: Any, **kwargs: Any) -> Any:
        return ours(theirs, self, *args, **kwargs)

    setattr(followed, _FOLLOWED, True)
    setattr(owner, name, followed)


def _load(theirs: Any, manager: Any, *args: Any, **kwargs: Any) -> Any:
    done = theirs(manager, *args, **kwargs)
    session = sessions.current
    if session is not None:
        session.guard.wrap(_began)(session, manager)
    return done


def _began(session: sessions.Session, manager: Any) -> None:
    trainer = getattr(manager, "states", {}).get("train_state")
    if trainer is None:  # 0.3 without checkpoints: steps are seen at the optimizer
        return
    loop = attach(FRAMEWORK, getattr(manager, "folder", "") or ".", trainer)
    if loop is None:
        return
    if not manager.enable:
        setattr(loop, "save_soon", _refuse)  # noqa: B010 – of this loop only
    _loops[id(session)] = loop
    loop.began(int(trainer.step), _training(trainer).steps)


def _refuse(step: int, *, held: bool = False) -> None:
    raise CheckpointError("torchtitan saves nothing in this job; enable its checkpoints")


def _save(theirs: Any, manager: Any, curr_step: int, last_step: bool = False) -> Any:
    session = sessions.current
    loop = None if session is None else _loops.get(id(session))
    if session is None or loop is None:
        return theirs(manager, curr_step, last_step=last_step)
    trainer = loop.owner
    total = session.guard.wrap(lambda: _training(trainer).steps)()
    wishes = loop.step_ended(curr_step, total)  # may end a script that is lost
    if wishes.stop:
        session.guard.wrap(_end_after)(trainer, curr_step)
    due = bool(session.guard.wrap(manager._should_save, otherwise=False)(curr_step, last_step))
    asked = (wishes.save or wishes.stop) and not due and manager.enable
    if asked:
        manager._should_save = lambda *_: True
    try:
        done = theirs(manager, curr_step, last_step=last_step)
    finally:
        if asked:
            del manager._should_save
    if due or asked:
        _pending.append(curr_step)
    if _pending:
        session.guard.wrap(_saved)(loop, manager)
    if last_step or wishes.stop:
        loop.ended()
    return done


def _end_after(trainer: Any, step: int) -> None:
    """Its loop runs while its step is below this number."""
    _training(trainer).steps = step


def _saved(loop: TrainingLoop, manager: Any) -> None:
    """Report the saves that are complete: torch.distributed.checkpoint writes its metadata last, after this
    step if it saves beside the training."""
    for step in list(_pending):
        path = manager._create_checkpoint_id(step)
        if os.path.exists(os.path.join(path, ".metadata")):
            _pending.remove(step)
            loop.saved(step, path)


def _log(theirs: Any, processor: Any, step: int, *args: Any, **kwargs: Any) -> Any:
    session = sessions.current
    loop = None if session is None else _loops.get(id(session))
    if session is not None and loop is not None:
        session.guard.wrap(_show_in_force)(loop, args, kwargs)
    done = theirs(processor, step, *args, **kwargs)
    if session is not None:
        session.guard.wrap(_report)(session if loop is None else loop, args, kwargs)
    return done


def _show_in_force(loop: TrainingLoop, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Log the learning rate that the step used: the trainer asks its schedule, which has its own."""
    more = _given(args, kwargs).get("extra_metrics")
    if isinstance(more, dict) and isinstance(more.get("lr"), float):
        more["lr"] = loop.in_force("lr", more["lr"])


def _report(to: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = _given(args, kwargs)
    metrics = {"loss": given.get("global_avg_loss"), "grad_norm": given.get("grad_norm")}
    metrics |= given.get("extra_metrics") or {}
    to.log({str(name): value for name, value in metrics.items() if value is not None})


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = ("global_avg_loss", "global_max_loss", "grad_norm", "extra_metrics")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _training(trainer: Any) -> Any:
    """The part of its configuration that has the number of steps."""
    config = getattr(trainer, "job_config", None) or trainer.config
    return config.training
