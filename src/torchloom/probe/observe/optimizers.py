"""The optimizers of a script that have stepped, by number. Counts nothing and changes none of them.

Number 0 is the *anchor*: the first optimizer that stepped, or the next one that steps should it be collected.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torchloom.wire.blackbox import PROGRESS_AT, Progress, View

_COUNT = PROGRESS_AT // 8 + Progress.OPTIMIZERS
MOST = 64
"""Numbers given out before those of optimizers that are gone are given again."""


class Optimizers:
    def __init__(self, view: View) -> None:
        self._words = view.words
        self.anchor: Callable[[], Any] = _nobody
        self._others: list[Callable[[], Any]] = []

    def by_number(self) -> list[Any]:
        """Each at the place of its number, None where it is gone."""
        return [self.anchor(), *(other() for other in self._others)]

    def numbered(self) -> list[tuple[int, Any]]:
        """Numbers and optimizers of those that still exist."""
        known = enumerate(self.by_number())
        return [(number, optimizer) for number, optimizer in known if optimizer is not None]

    def living(self) -> list[Any]:
        """Those that still exist, the anchor first."""
        return [optimizer for optimizer in self.by_number() if optimizer is not None]

    def anchor_name(self) -> str:
        return type(self.anchor()).__name__

    def drop_anchor(self, optimizer: Any) -> None:
        """From now on this one is number 0."""
        if self._others and self._others[-1]() is optimizer:
            self._others.pop()
        self._others = [_nobody if other() is optimizer else other for other in self._others]
        self.anchor = weakref.ref(optimizer)
        self._words[_COUNT] = len(self.living())

    def enrol(self, optimizer: Any) -> int:
        """The number of one that is not the anchor: it keeps it for life, because changes name it so."""
        for place, other in enumerate(self._others):
            if other() is optimizer:
                return place + 1
        if len(self._others) >= MOST:
            self._others = [other for other in self._others if other() is not None]
        self._others.append(weakref.ref(optimizer))
        self._words[_COUNT] = len(self.living())
        return len(self._others)


def _nobody() -> None:
    """The anchor before there is one."""
