"""Reading back the state of a loader: refuses what is not one, or is one of other data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchloom.errors import UsageError

VERSION = 1


def checked(state: Any, kind: str, **same: object) -> None:
    """Refuse a state of another kind or version, or one that disagrees with `same`."""
    if not isinstance(state, Mapping) or state.get("kind") != kind:
        raise UsageError(f"this is not the state of a {kind} loader")
    if state.get("version") != VERSION:
        raise UsageError(
            f"this data state is of version {state.get('version')!r}, not {VERSION}",
            hint="use the torchloom that wrote it",
        )
    for name, now in same.items():
        if state.get(name) != now:
            raise UsageError(
                f"the data is not that of the checkpoint: {name} was {state.get(name)!r} and is {now!r}",
                hint="restore with the same dataset and options, or start without the data state",
            )


def whole_number(state: Mapping[str, Any], name: str, most: int | None) -> int:
    """A number of the state, from 0 to `most`; a seed may be any whole number."""
    value = state.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"the data state has no number {name}")
    if name != "seed" and (value < 0 or (most is not None and value > most)):
        raise UsageError(f"{name} {value} of the data state is out of range")
    return value
