"""Reads the command line of a verb, if everything in it is known and right. It reports no error: what it
cannot read is read again by typer, which does.

The rules are typer's: options stand anywhere, `--name value` or `--name=value`, short ones may be joined
(`-aq`), the last of several counts, `--` ends them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from torchloom.cli.declared import Parameter

_SIMPLE = (str, int, float, Path)
_UNDERSTOOD = frozenset({"help", "metavar", "show_default", "min", "max", "callback"})


class NotPlain(Exception):
    """Typer must read it."""


class _Slot:
    """One parameter of a verb while its command line is read."""

    def __init__(self, name: str, declared: inspect.Parameter) -> None:
        self.name, self.default = name, declared.default
        if get_origin(declared.annotation) is not Annotated:
            raise NotPlain
        kind, *more = get_args(declared.annotation)
        said = next((one for one in more if isinstance(one, Parameter)), None)
        if said is None or not said.said.keys() <= _UNDERSTOOD:
            raise NotPlain
        self.is_option, self.said, self.names = said.is_option, said.said, said.names
        if get_origin(kind) in (Union, UnionType):
            kinds = [one for one in get_args(kind) if one is not NoneType]
            if len(kinds) != 1:
                raise NotPlain
            kind = kinds[0]
        self.many = get_origin(kind) is list
        self.kind = get_args(kind)[0] if self.many else kind
        self.flag = self.is_option and self.kind is bool
        if not self.flag and self.kind not in _SIMPLE:
            raise NotPlain
        if self.is_option and not self.names:
            long = f"--{name.replace('_', '-')}"
            self.names = (f"{long}/--no-{long[2:]}",) if self.flag else (long,)
        self.values: list[Any] = []

    def take(self, text: str) -> None:
        try:
            value = self.kind(text)
        except ValueError:
            raise NotPlain from None
        least, most = self.said.get("min"), self.said.get("max")
        if (least is not None and value < least) or (most is not None and value > most):
            raise NotPlain
        self.values.append(value)

    @property
    def value(self) -> Any:
        if self.values:
            found = self.values if self.many else self.values[-1]
        elif self.default is inspect.Parameter.empty:
            raise NotPlain
        else:
            found = self.default
        callback = self.said.get("callback")
        return found if callback is None else callback(found)


def read(command: Callable[..., Any], argv: Sequence[str]) -> dict[str, Any]:
    """The arguments with which to call a verb. NotPlain: typer must read it."""
    slots = [_Slot(n, p) for n, p in inspect.signature(command, eval_str=True).parameters.items()]
    by_name: dict[str, tuple[_Slot, bool]] = {}
    for slot in slots:
        for name in slot.names:
            yes, _, no = name.partition("/")
            by_name[yes] = slot, True
            if no:
                by_name[no] = slot, False
    places = _read_options(list(argv), by_name)
    _fill([slot for slot in slots if not slot.is_option], places)
    return {slot.name: slot.value for slot in slots}


def _read_options(rest: list[str], by_name: dict[str, tuple[_Slot, bool]]) -> list[str]:
    """Take the options; what is left are the arguments, in order."""
    places: list[str] = []
    while rest:
        word = rest.pop(0)
        if word == "--":
            return places + rest
        if not word.startswith("-") or word == "-":
            places.append(word)
            continue
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], "", word[2:])
        if name not in by_name:
            raise NotPlain
        slot, yes = by_name[name]
        if slot.flag:
            slot.values.append(yes)
            if equals:
                raise NotPlain
            if value:
                rest.insert(0, f"-{value}")
        elif equals or value:
            slot.take(value)
        elif rest:
            slot.take(rest.pop(0))
        else:
            raise NotPlain
    return places


def _fill(slots: Sequence[_Slot], places: list[str]) -> None:
    """Arguments take a word each in order; the last may take all the rest."""
    for slot in slots:
        if slot.many and slot is not slots[-1]:
            raise NotPlain
        for word in places if slot.many else places[:1]:
            slot.take(word)
        places = [] if slot.many else places[1:]
    if places:
        raise NotPlain
