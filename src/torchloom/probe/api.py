"""What `import torchloom` offers a training script. Without torchloom around it, every call does nothing.

Nothing here raises for an odd value, waits for a device or talks to anybody: it writes into the black box.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple

from torchloom.probe import session


class Info(NamedTuple):
    """Who this worker is."""

    job: str | None
    replica: str | None
    rank: int
    world_size: int
    local_rank: int
    generation: int
    """Of the job: grows with every restart of it."""
    incarnation: int
    """Of this process within its place in the job."""


def log(**metrics: object) -> None:
    """Show these values: numbers, one-element tensors or arrays, short texts. A GPU is not waited for."""
    if session.current is not None:
        session.current.log(metrics)


def step(number: object, total: object = None) -> None:
    """Report the script's own step number (which continues after a restart) and, if known, its last one."""
    if session.current is not None:
        session.current.tell_step(number, total)


def role(name: object) -> None:
    """Tell what this rank does, for example `stage1`: slowness is looked for among ranks of one role."""
    if session.current is not None:
        session.current.tell_role(name)


def training_step(number: object) -> None:
    """For loom.Checkpoint: the step that the training's state is of now."""
    if session.current is not None:
        session.current.tell_training_step(number)


def tell_checkpoints(told: Mapping[str, object]) -> None:
    """For loom.Checkpoint: what it saved, what failed, and where it is (checkpoint/report_text.py)."""
    if session.current is not None:
        session.current.tell_checkpoints(told)


def in_force(optimizer: Any, name: str = "lr", group: int = 0) -> Any:
    """The value that the optimizer's steps use: the one that `loom set` holds, or else the script's own."""
    found = session.current.in_force(optimizer, name, group) if session.current is not None else None
    value = optimizer.param_groups[group][name] if found is None else found
    return value.item() if hasattr(value, "item") else value


class own_values:
    """For loom.Checkpoint: inside, param groups hold the script's own values instead of those that are set.
    `loaded`: a state is loaded here, so what the groups hold at the end is the script's own."""

    def __init__(self, loaded: bool = False) -> None:
        self._loaded = loaded

    def __enter__(self) -> None:
        if session.current is not None:
            session.current.hide_settings()

    def __exit__(self, *_: object) -> None:
        if session.current is not None:
            session.current.show_settings(self._loaded)


def script_writes(optimizer: Any) -> Mapping[str, Any] | None:
    """For loom.Checkpoint: what is known of the script's writes to the param groups, to be saved."""
    return session.current.script_writes(optimizer) if session.current is not None else None


def restored_writes(optimizer: Any, told: Mapping[str, Any]) -> None:
    """For loom.Checkpoint: this was saved with the state that the optimizer has just loaded. Inside
    `own_values(True)`."""
    if session.current is not None:
        session.current.restored_writes(optimizer, told)


def is_finite() -> bool:
    """For loom.Checkpoint: whether loss and parameters are finite numbers, as far as somebody looked."""
    return session.current is None or session.current.is_finite


class phase(contextlib.ContextDecorator):
    """`with loom.phase("eval"):` names what the script does, so that a long pause is not taken for a hang."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._before: list[int | None] = []

    def __enter__(self) -> phase:
        self._before.append(session.current.enter_phase(self._name) if session.current else None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        before = self._before.pop()
        if before is not None and session.current is not None:
            session.current.leave_phase(before)


def attach() -> bool:
    """Make the hooks live in a process that torchloom did not start, if $LOOM_BOX names its black box.

    True when this process records (also when it did already), False when there is nothing to record to.
    """
    if session.current is not None:
        return True
    path = os.environ.get("LOOM_BOX")
    if not path:
        return False
    from torchloom.probe import worker

    return worker.adopt(path)


def info() -> Info | None:
    """Who this worker is; None when torchloom is not around."""
    told = session.current.identity() if session.current is not None else None
    if not told:
        return None
    return Info(**{name: told.get(name) for name in Info._fields})
