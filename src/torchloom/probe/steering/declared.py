"""Settings that a script declares: `@loom.handler`, `loom.setting`, and those of torchloom's own objects.

Owns the registry of this process. A declaration that makes no sense raises a UsageError at once, with and
without torchloom around, because it stands in the source; apart from that, without torchloom nothing happens.
config.py decides what is set, when, and what is undone.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from torchloom.core.config.settings import BUILT_IN, HYPERPARAMETERS
from torchloom.errors import UsageError
from torchloom.probe.steering.annotations import Form, form_of

MOST = 200
NAME_CHARS = 64
DESCRIPTION_CHARS = 300
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_UNKNOWN: Any = inspect.Parameter.empty

T = TypeVar("T")
Handler = Callable[[Any], object]


def _nothing() -> None:
    """Nobody listens."""


def _nothing_about(value: Any) -> None:
    """Nothing more is to be checked."""


class Declared:
    """One setting of the script's own."""

    def __init__(self, form: Form, call: Handler, value: Any) -> None:
        self.setting = form.setting
        self._form, self._call = form, call
        self._get: Callable[[], Any] | None = value if callable(value) else None
        self._value = None if self._get else form.encode(value)
        self.initial: object = None
        """What it was before any change, as JSON, once that is remembered."""
        self.is_remembered = False
        self.check: Callable[[Any], object] = _nothing_about
        """Raises UsageError for a value that the type allows and the present state does not."""

    @property
    def value(self) -> Any:
        """As JSON."""
        return self._value if self._get is None else self._form.encode(self._get())

    def told(self) -> Any:
        """The value to show; None if the script's own getter fails."""
        try:
            return self.value
        except Exception:  # noqa: BLE001 – code of the script's; a change of it would say why
            return None

    def set(self, value: Any) -> None:
        """Call the handler. Raises whatever it raises; then the value counts as unchanged."""
        self._call(self._form.decode(value))
        self._value = value


class Registry:
    """What is declared in this process, by name. `changed` is called after every declaration."""

    def __init__(self) -> None:
        self.by_name: dict[str, Declared] = {}
        self.changed: Callable[[], None] = _nothing

    def add(self, declared: Declared) -> None:
        self.by_name[declared.setting.name] = declared
        self.changed()


registry = Registry()


def handler(
    name: str | None = None,
    *,
    value: Any = _UNKNOWN,
    minimum: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    choices: Sequence[Any] = (),
    description: str = "",
) -> Callable[[Handler], Handler]:
    """Have the decorated function called when `name` is set from outside: `loom set JOB dropout=0.2`.

        @loom.handler("dropout", minimum=0.0, below=1.0)
        def set_dropout(p: float = 0.1) -> None: ...

    Its one argument's annotation is the setting's type. The present value is the argument's default, or
    `value=`, which may be a function that returns it. It is called on all ranks before one and the same step;
    if it raises on any rank it is called again on all, with the old value.
    """

    def declare(function: Handler) -> Handler:
        called = name if name is not None else getattr(function, "__name__", "")
        parameter = _one_parameter(called, function)
        present = parameter.default if value is _UNKNOWN else value
        if present is _UNKNOWN:
            raise UsageError(f"setting {called} has no value yet", hint="give value= or a default")
        form = _form(called, _annotation(called, function, parameter), minimum, maximum, below, choices)
        _add(form, function, present, description or inspect.getdoc(function) or "")
        return function

    return declare


class Value(Generic[T]):
    """A setting that the script reads: `clip.value`."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Value({self.value!r})"


def setting(
    name: str,
    value: T,
    *,
    type: Any = _UNKNOWN,
    minimum: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    choices: Sequence[Any] = (),
    description: str = "",
) -> Value[T]:
    """Declare a value that can be changed from outside; read it where it is used.

        clip = loom.setting("clip", 1.0, minimum=0.0)
        ...
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip.value)

    Its type is that of `value`, unless `type=` names another (`float | None`).
    """
    holder = Value(value)

    def assign(new: T) -> None:
        holder.value = new

    annotation = value.__class__ if type is _UNKNOWN else type
    form = _form(name, annotation, minimum, maximum, below, choices)
    _add(form, assign, lambda: holder.value, description)
    return holder


def _add(form: Form, call: Handler, value: Any, description: str) -> None:
    name = form.setting.name
    if name not in registry.by_name and len(registry.by_name) >= MOST:
        raise UsageError(f"setting {name} is one too many", hint=f"declare at most {MOST}")
    shortened = " ".join(description.split())[:DESCRIPTION_CHARS]
    described = dataclasses.replace(form.setting, description=shortened)
    declared = Declared(form._replace(setting=described), call, value)
    declared.value  # noqa: B018 – a value that does not fit its own declaration is said now
    registry.add(declared)


def _form(name: object, annotation: Any, *bounds: Any) -> Form:
    if not isinstance(name, str) or len(name) > NAME_CHARS or not _NAME.fullmatch(name):
        raise UsageError(
            f"{str(name)[:NAME_CHARS]!r} is no name for a setting",
            hint=f"use up to {NAME_CHARS} letters, digits, _ and -, and begin with a letter",
        )
    if name in HYPERPARAMETERS or name in BUILT_IN or re.fullmatch(r"optimizer\d+", name):
        raise UsageError(f"{name} is a setting of every job already", hint="choose another name")
    minimum, maximum, below, choices = bounds
    declared: dict[str, Any] = {"minimum": minimum, "maximum": maximum, "below": below}
    declared = {bound: float(value) for bound, value in declared.items() if value is not None}
    if choices:
        declared["choices"] = tuple(choices)
    return form_of(name, annotation, **declared)


def _one_parameter(name: str, function: Handler) -> inspect.Parameter:
    parameters = list(inspect.signature(function).parameters.values())
    extra = [
        p for p in parameters[1:] if p.default is _UNKNOWN and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    if not parameters or extra or parameters[0].kind in (inspect.Parameter.KEYWORD_ONLY,):
        raise UsageError(f"the handler of {name} must take the new value as its one argument")
    return parameters[0]


def _annotation(name: str, function: Handler, parameter: inspect.Parameter) -> Any:
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError) as error:
        raise UsageError(f"the annotation of {name}'s handler cannot be read ({error})") from error
    if parameter.name in hints:
        return hints[parameter.name]
    default = parameter.default
    if default is _UNKNOWN or default is None:
        raise UsageError(f"the handler of {name} does not say its type", hint="annotate its argument")
    return type(default)
