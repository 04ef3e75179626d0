"""The job's settings `batch_size` and `transforms`, as soon as a script makes a loader that has them.

Declares what `torchloom.data.live` tells of. Keeps nothing alive: of a loader that is gone the last value is
told, and setting it is refused.
"""

from __future__ import annotations

import weakref
from typing import Any

from torchloom.core.settings import BATCH_SIZE, TRANSFORMS, Setting, Type
from torchloom.errors import UsageError
from torchloom.probe.annotations import Form
from torchloom.probe.declared import built_in

_SETTINGS = {
    BATCH_SIZE: Setting(
        BATCH_SIZE,
        Type.INT,
        minimum=1,
        description="samples of one step over all ranks, from the next batch on",
    ),
    TRANSFORMS: Setting(
        TRANSFORMS,
        Type.TEXT,
        description='names with commas, or JSON with arguments: ["crop", {"noise": {"std": 0.1}}]',
    ),
}


def offer(name: str, thing: Any) -> None:
    """There is such a thing now."""
    setting = _SETTINGS.get(name)
    if setting is None:
        return
    held, last = weakref.ref(thing), [_told(name, thing)]

    def get() -> Any:
        found = held()
        if found is not None:
            last[0] = _told(name, found)
        return last[0]

    def assign(value: Any) -> None:
        found = held()
        if found is None:
            raise UsageError(f"{name} cannot be set any more, because its loader is gone")
        found.set(value)

    built_in(Form(setting, _same, _same), assign, get)


def _told(name: str, thing: Any) -> Any:
    return thing.text if name == TRANSFORMS else thing.get()


def _same(value: Any) -> Any:
    return value
