"""Offers what can be set in torchloom's own loaders as settings, where a script uses them: batch size,
transforms, samples left out, shares of the ranks.

Owns the declarations. What they do, and from which batch on, is the loaders' (data/live.py). Keeps no
loader alive, and imports none.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from torchloom.core.config.settings import BATCH_SIZE, SHARES, SKIPPED, TRANSFORMS, Setting, Type
from torchloom.errors import UsageError
from torchloom.probe.steering.annotations import Form
from torchloom.probe.steering.declared import Declared, Registry

_LIVE = "torchloom.data.live"


class DataSettings:
    """Of one worker."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._listens = False
        self.completed: Callable[[], int] = int
        """Tells how many steps this worker has made."""

    def look(self) -> None:
        """Listen, once the script has loaders of ours."""
        live = None if self._listens else sys.modules.get(_LIVE)
        if live is not None:
            self._listens = True
            live.count_steps_by(lambda: self.completed())
            live.listen(self._declare)

    def without(self, steps: object, offset: int | None) -> dict[str, object]:
        """The change that leaves out the batches of these training steps; empty when the data has no places
        that could be named, or when none of them is remembered."""
        live = sys.modules.get(_LIVE)
        skips = live.current(SKIPPED) if live is not None else None
        match steps:
            case [int(first), int(last)] if skips is not None and offset is not None:
                text = skips.with_steps(first - offset, last - offset)
                return {SKIPPED: text} if text != skips.get() else {}
        return {}

    def _declare(self, name: str, thing: Any) -> None:
        found = weakref.ref(thing)

        def check(value: Any) -> object:
            present = found()
            if present is None:
                raise UsageError(f"the loader that {name} was of is gone")
            return present.check(value)

        def put(value: Any) -> None:
            """A script may drop its loader: then there is nothing that the value could hold for."""
            present = found()
            if present is not None:
                present.set(value)

        def get() -> Any:
            present = found()
            if present is None:
                return None
            return present.text if name == TRANSFORMS else present.get()

        setting = _setting(name, thing)
        if setting is not None:
            form = Form(setting, _same, _same)
            declared = Declared(form, put, get)
            declared.check = check
            self._registry.add(declared)


def _setting(name: str, thing: Any) -> Setting | None:
    if name == BATCH_SIZE:
        return Setting(name, Type.INT, minimum=1, description="samples of one step over all ranks")
    if name == TRANSFORMS:
        described = "names in their order, or JSON with arguments"
        return Setting(name, Type.TEXT, choices=tuple(thing.known), description=described)
    if name == SKIPPED:
        return Setting(name, Type.TEXT, description="samples left out, by place: EPOCH:FIRST-END, …")
    if name == SHARES:
        described = "ranks that take fewer samples than the others: RANK:SHARE, … of RANKS; or even"
        return Setting(name, Type.TEXT, description=described)
    return None


def _same(value: Any) -> Any:
    return value
