"""Enums and named tuples of the script, by the place of their class.

Owns the look-up. Nothing is imported and no code of the class is run to find it: a checkpoint may name only
what the script has defined at the top of a module, or inside of a class there, by the time it restores.
"""

from __future__ import annotations

import enum
import functools
import operator
import sys
from typing import Any

from torchloom.errors import UsageError


def take_enum(value: enum.Enum) -> list[Any] | None:
    """[module, class, names of the members]; None if that would not lead back to it."""
    kind = type(value)
    names = [member.name for member in value] if isinstance(value, enum.Flag) else [value.name]
    place = [kind.__module__, kind.__qualname__, names]
    if _find(kind.__module__, kind.__qualname__) is not kind or None in names:
        return None
    try:
        return place if make_enum(place) is value or make_enum(place) == value else None
    except (KeyError, TypeError, ValueError):
        return None


def make_enum(held: list[Any]) -> Any:
    module, name, members = held
    kind = _find(module, name)
    if kind is None:
        raise _unknown(module, name)
    if not isinstance(kind, enum.EnumMeta):
        raise ValueError(f"{name} is no enum")
    found = [kind._member_map_[member] for member in members]
    if issubclass(kind, enum.Flag):
        return functools.reduce(operator.or_, found, kind(0))
    (only,) = found
    return only


def named_place(kind: type[Any]) -> list[Any] | None:
    """[module, class] of a named tuple's class; None if it is no such class or is not found there."""
    if not isinstance(getattr(kind, "_fields", None), tuple):
        return None
    found = _find(kind.__module__, kind.__qualname__)
    return [kind.__module__, kind.__qualname__] if found is kind else None


def make_named(module: str, name: str, items: list[Any]) -> Any:
    kind = _find(module, name)
    if kind is None:
        raise _unknown(module, name)
    if not (isinstance(kind, type) and issubclass(kind, tuple)) or len(getattr(kind, "_fields", ())) != len(
        items
    ):
        raise UsageError(
            f"the checkpoint holds a {module}.{name} of {len(items)} fields, and this script defines another",
            hint="restore with the class it was saved with",
        )
    return tuple.__new__(kind, items)


def _find(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for piece in name.split("."):
        if found is None:
            return None
        found = vars(found).get(piece) if hasattr(found, "__dict__") else None
    return found


def _unknown(module: str, name: str) -> UsageError:
    return UsageError(
        f"the checkpoint holds a {module}.{name}, which this script does not define",
        hint="restore with the script it was saved with, or with one that defines that class",
    )
