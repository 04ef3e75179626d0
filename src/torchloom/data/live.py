"""What of this process's data can be changed while it runs, for the probe to find and offer as settings.

    found = sys.modules.get("torchloom.data.live")     # not there: the script uses no loader of ours
    if found: found.listen(declare)                     # declare("batch_size", thing), now and later

A thing has `get()`, `set(value)` and `check(value)`, in plain values; `set` takes hold from the next batch on
and raises UsageError, changing nothing, if it cannot be. All ranks must set at the same step. Owns the
registry only, keeps nothing alive and imports no torch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol


class Live(Protocol):
    """A value of the training's data that may be set between two steps."""

    def get(self) -> Any:
        """The value now."""

    def set(self, value: Any) -> None:
        """Let it hold from the next batch on."""

    def check(self, value: Any) -> Any:
        """Raises UsageError if it could not be set."""


Listener = Callable[[str, Live], None]

_completed: Callable[[], int] | None = None
_loader: weakref.ref[Any] | None = None
_things: dict[str, weakref.ref[Any]] = {}
_listeners: list[Listener] = []


def offer(name: str, thing: Live) -> None:
    """There is such a thing from now on. Of several of one name the first that lives counts, because a
    script makes what it trains with before what it evaluates with."""
    if current(name) is not None:
        return
    _things[name] = weakref.ref(thing)
    for listener in _listeners:
        listener(name, thing)


def current(name: str) -> Any:
    """The thing of that name, or None."""
    found = _things.get(name)
    return None if found is None else found()


def train_with(loader: Any) -> None:
    """This `ElasticLoader` has been made. As above, the first that lives counts."""
    global _loader
    if training_loader() is None:
        _loader = weakref.ref(loader)


def training_loader() -> Any:
    """The `ElasticLoader` that the script trains with, or None."""
    return None if _loader is None else _loader()


def count_steps_by(source: Callable[[], int]) -> None:
    """Who knows how many steps this process has made."""
    global _completed
    _completed = source


def completed_steps() -> int:
    """0 if nothing counts."""
    return _completed() if _completed is not None else 0


def listen(listener: Listener) -> None:
    """Get called for everything present and everything that is added later."""
    _listeners.append(listener)
    for name in list(_things):
        thing = current(name)
        if thing is not None:
            listener(name, thing)
