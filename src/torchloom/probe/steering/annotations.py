"""From a Python annotation to a setting, and between its JSON and what the script is given.

float, int, bool, str, a tuple of floats, Literal, Enum, Optional and dataclasses of these. Anything else is
refused where it is declared, at once and in every run, so that it cannot surprise a training later.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from torchloom.core.config.settings import Setting, Type
from torchloom.errors import UsageError

DEEPEST = 4
"""How far dataclasses may nest."""


class Form(NamedTuple):
    """How values of one annotation are declared, parsed and reported."""

    setting: Setting
    decode: Callable[[Any], Any]
    """JSON → what the script is given."""
    encode: Callable[[Any], Any]
    """What the script has → JSON. Raises UsageError for what is not of this form."""


def _same(value: Any) -> Any:
    return value


def form_of(name: str, annotation: Any, depth: int = 0, **declared: Any) -> Form:
    """The form that `annotation` denotes; `declared` are bounds, choices and description."""
    optional, inner = _optional(annotation)
    if optional:
        form = form_of(name, inner, depth, **declared)
        return Form(
            dataclasses.replace(form.setting, optional=True),
            lambda value: None if value is None else form.decode(value),
            lambda value: None if value is None else form.encode(value),
        )
    simple = {float: Type.FLOAT, int: Type.INT, bool: Type.BOOL, str: Type.TEXT}.get(inner)
    if simple is Type.TEXT and declared.get("choices"):
        return _plain_form(Setting(name, Type.CHOICE, **declared))
    if simple is not None:
        return _plain_form(Setting(name, simple, **declared))
    if typing.get_origin(inner) is typing.Literal:
        return _choice(name, {str(choice): choice for choice in typing.get_args(inner)}, **declared)
    if isinstance(inner, type) and issubclass(inner, enum.Enum):
        return _choice(name, {member.name: member for member in inner}, **declared)
    if typing.get_origin(inner) is tuple and set(typing.get_args(inner)) == {float}:
        setting = Setting(name, Type.NUMBERS, count=len(typing.get_args(inner)), **declared)
        return Form(setting, tuple, lambda value: setting.check(list(value)))
    if isinstance(inner, type) and dataclasses.is_dataclass(inner) and depth < DEEPEST:
        return _record(name, inner, depth, **declared)
    raise UsageError(
        f"setting {name} cannot be of type {inner!r}",
        hint="use float, int, bool, str, tuple[float, …], Literal, Enum, Optional or a dataclass of these",
    )


def _optional(annotation: Any) -> tuple[bool, Any]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(annotation) if part is not type(None)]
        if len(parts) == 1 and len(typing.get_args(annotation)) == 2:
            return True, parts[0]
    return False, annotation


def _plain_form(setting: Setting) -> Form:
    return Form(setting, _same, setting.check)


def _choice(name: str, members: dict[str, Any], **declared: Any) -> Form:
    asked = tuple(str(getattr(choice, "name", choice)) for choice in declared.pop("choices", ()) or ())
    choices = tuple(choice for choice in members if not asked or choice in asked)
    setting = Setting(name, Type.CHOICE, choices=choices, **declared)

    def encode(value: Any) -> Any:
        return setting.check(next((text for text, member in members.items() if member == value), value))

    return Form(setting, members.__getitem__, encode)


def _record(name: str, kind: type, depth: int, **declared: Any) -> Form:
    hints = typing.get_type_hints(kind)
    forms = {
        field.name: form_of(field.name, hints[field.name], depth + 1)
        for field in dataclasses.fields(kind)
        if field.init
    }
    setting = Setting(name, Type.RECORD, fields=tuple(form.setting for form in forms.values()), **declared)

    def decode(value: Any) -> Any:
        return kind(**{part: forms[part].decode(inner) for part, inner in value.items()})

    def encode(value: Any) -> Any:
        if isinstance(value, kind):
            value = {part: form.encode(getattr(value, part)) for part, form in forms.items()}
        return setting.check(value)

    return Form(setting, decode, encode)
