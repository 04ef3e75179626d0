"""Settings that a running job can be given: their types, bounds and names, and what a change would change.

Two sorts: hyperparameters of the optimizers' param groups, known from what the workers report, and settings
of the script's own, declared with a type. What makes no sense is refused here, before anything is sent, in a
sentence that names what is allowed. Standard library only, because ranks check again. Applies nothing.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from torchloom.core.config.overrides import HOLD, OWN, SCALE, Held, factor_of, in_effect, mode_of
from torchloom.errors import UsageError


class Type(StrEnum):
    """What a value must be."""

    FLOAT = "a number"
    INT = "a whole number"
    BOOL = "true or false"
    TEXT = "a text"
    CHOICE = "one of"
    NUMBERS = "numbers"
    """A fixed count of numbers, as Adam's betas."""
    RECORD = "an object"


_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_NONE = frozenset({"none", "null"})


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as it is declared."""

    name: str
    type: Type
    optional: bool = False
    """None is a value of it."""
    minimum: float | None = None
    maximum: float | None = None
    below: float | None = None
    """As maximum, but itself not allowed."""
    choices: tuple[str, ...] = ()
    """Of CHOICE; of a TEXT that lists names, which there are."""
    count: int = 0
    """How many NUMBERS."""
    fields: tuple[Setting, ...] = ()
    description: str = ""

    def allowed(self) -> str:
        """The allowed values, for people."""
        text = str(self.type)
        match self.type:
            case Type.CHOICE:
                text += " " + ", ".join(self.choices)
            case Type.TEXT if self.choices:
                text = "names out of " + ", ".join(self.choices)
            case Type.NUMBERS:
                text = f"{self.count} {text}"
            case Type.RECORD:
                text += " with " + ", ".join(f"{f.name} ({f.allowed()})" for f in self.fields)
            case _:
                pass
        bounds = [
            f"at least {self.minimum:g}" if self.minimum is not None else "",
            f"at most {self.maximum:g}" if self.maximum is not None else "",
            f"below {self.below:g}" if self.below is not None else "",
            "or none" if self.optional else "",
        ]
        return ", ".join([text, *(bound for bound in bounds if bound)])

    def parse(self, text: str) -> object:
        """The value that a text on the command line means."""
        word = text.strip()
        if self.optional and word.lower() in _NONE:
            return None
        value: object = word
        match self.type:
            case Type.FLOAT | Type.INT:
                value = _number(word)
            case Type.BOOL:
                value = True if word.lower() in _TRUE else False if word.lower() in _FALSE else word
            case Type.NUMBERS:
                value = [_number(part) for part in word.strip("[]() ").split(",")]
            case Type.RECORD:
                try:
                    value = json.loads(word)
                except ValueError:
                    pass
            case Type.TEXT | Type.CHOICE:
                pass
        return self.check(value)

    def check(self, value: object) -> object:
        """The value as it will be applied; UsageError if it is not allowed."""
        if value is None and self.optional:
            return None
        match self.type:
            case Type.FLOAT:
                return self._bounded(value)
            case Type.INT:
                number = self._bounded(value)
                if number != int(number):
                    raise self._refusal(value)
                return int(number)
            case Type.NUMBERS:
                if not isinstance(value, list | tuple) or len(value) != self.count:
                    raise self._refusal(value)
                return [self._bounded(part) for part in value]
            case Type.RECORD:
                return self._record(value)
            case Type.BOOL:
                good = isinstance(value, bool)
            case Type.TEXT:
                good = isinstance(value, str)
                if isinstance(value, str) and self.choices:
                    self._check_names(value)
            case Type.CHOICE:
                good = value in self.choices
        if not good:
            raise self._refusal(value)
        return value

    def _check_names(self, text: str) -> None:
        """What is written as JSON has more than names in it, and is left to the ranks."""
        for name in () if text.lstrip().startswith("[") else text.split(","):
            if name.strip() and name.strip() not in self.choices:
                raise unknown_name(name.strip(), self.choices, f"{self.name} has no")

    def _bounded(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            raise self._refusal(value)
        low = self.minimum is not None and value < self.minimum
        high = self.maximum is not None and value > self.maximum
        if low or high or (self.below is not None and value >= self.below):
            raise self._refusal(value)
        return value if self.type is Type.INT else float(value)

    def _record(self, value: object) -> dict[str, object]:
        if not isinstance(value, dict):
            raise self._refusal(value)
        fields = {f.name: f for f in self.fields}
        for name in value:
            if name not in fields:
                raise unknown_name(str(name), fields, f"{self.name} has no field")
        for name, declared in fields.items():
            if name not in value and not declared.optional:
                raise UsageError(f"{self.name} lacks its field {name}", hint=f"give {declared.allowed()}")
        return {name: fields[name].check(part) for name, part in value.items()}

    def _refusal(self, value: object) -> UsageError:
        return UsageError(f"{shorten(value)} is not a value for {self.name}", hint=f"give {self.allowed()}")


def _finite(value: int | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def shorten(value: object) -> str:
    """A value as a person gave it; not all of it, if that would be a page."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _number(word: str) -> object:
    for read in (int, float):
        try:
            return read(word)
        except ValueError:
            continue
    return word


def unknown_name(name: str, known: Iterable[str], what: str = "there is no setting") -> UsageError:
    """The refusal of a name, with the nearest known one."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(names) or 'none'}"
    return UsageError(f"{what} {name!r}", hint=hint)


# -- addresses ----------------------------------------------------------------------------------

_ADDRESS = re.compile(
    r"(?:optimizer(?P<optimizer>\d{1,4})\.)?(?P<name>[A-Za-z_][\w-]*)(?:@(?P<group>\d{1,4}))?"
)


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where a value goes: `lr` is every group of every optimizer, `lr@1` group 1 of each, `optimizer0.lr` all
    groups of the anchor, `optimizer1.lr@0` one place. Counted from 0, as torch does; the anchor is 0."""

    name: str
    optimizer: int | None = None
    group: int | None = None

    def __str__(self) -> str:
        before = "" if self.optimizer is None else f"optimizer{self.optimizer}."
        return f"{before}{self.name}" + ("" if self.group is None else f"@{self.group}")

    def covers(self, other: Address) -> bool:
        """Whether setting this sets all that setting the other would."""
        return (
            self.name == other.name
            and self.optimizer in (None, other.optimizer)
            and self.group in (None, other.group)
        )


@functools.lru_cache(maxsize=1024)  # the few that a job has are asked for at every change, in its steps
def parse_address(text: str) -> Address:
    found = _ADDRESS.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"{text!r} names no setting", hint="write lr, lr@1, optimizer1.lr or optimizer1.lr@0"
        )
    optimizer, group = found["optimizer"], found["group"]
    return Address(
        found["name"], None if optimizer is None else int(optimizer), None if group is None else int(group)
    )


# -- a change -----------------------------------------------------------------------------------

HYPERPARAMETERS = {
    setting.name: setting
    for setting in (
        Setting("lr", Type.FLOAT, minimum=0.0),
        Setting("weight_decay", Type.FLOAT, minimum=0.0),
        Setting("momentum", Type.FLOAT, minimum=0.0),
        Setting("dampening", Type.FLOAT),
        Setting("betas", Type.NUMBERS, minimum=0.0, below=1.0, count=2),
        Setting("eps", Type.FLOAT, minimum=0.0),
        Setting("alpha", Type.FLOAT, minimum=0.0),
        Setting("rho", Type.FLOAT, minimum=0.0, maximum=1.0),
        Setting("lr_decay", Type.FLOAT, minimum=0.0),
    )
}
"""Of param groups. Flags such as amsgrad are left out: an optimizer in mid-run lacks the state for them."""

MAX_STEPS = Setting(
    "max_steps",
    Type.INT,
    optional=True,
    minimum=1,
    description="the last training step; the job then ends well",
)
"""Every job whose steps are counted has it."""
BATCH_SIZE = "batch_size"
TRANSFORMS = "transforms"
SKIPPED = "skipped_data"
"""Samples that are left out, as data/skipping.py writes them."""
SHARES = "shares"
"""Ranks that take fewer samples of each step than the others, as data/shares.py writes them."""
BUILT_IN = frozenset({MAX_STEPS.name, BATCH_SIZE, TRANSFORMS, SKIPPED, SHARES})
"""Names that a script cannot declare, because torchloom's own objects do."""


@dataclass(frozen=True, slots=True)
class KnownSettings:
    """What a job has: param groups as the workers report them, and the script's own settings."""

    optimizers: Sequence[Sequence[Mapping[str, Any]]] = ()
    """Per optimizer, the anchor first, its groups: name → value."""
    declared: Sequence[Setting] = ()
    values: Mapping[str, object] = field(default_factory=dict)
    """Current values of what is declared."""
    held: Mapping[str, Held] = field(default_factory=dict)
    """Places of param groups where something else holds than the script set; `optimizers` has what holds."""
    classes: Sequence[str] = ()
    """Per optimizer the name of its class, as far as it is known."""

    def names(self) -> set[str]:
        groups = (name for optimizer in self.optimizers for group in optimizer for name in group)
        return {name for name in groups if name in HYPERPARAMETERS} | {s.name for s in self.declared}


@dataclass(frozen=True, slots=True)
class Difference:
    """One place that a change sets."""

    address: str
    before: object
    after: object

    @property
    def is_one(self) -> bool:
        return self.before != self.after


def resolve(
    wanted: Mapping[str, object], known: KnownSettings
) -> tuple[dict[str, object], tuple[Difference, ...]]:
    """The values to send, checked, and every place they would set. Texts are parsed, other values checked."""
    values: dict[str, object] = {}
    places: dict[str, Difference] = {}
    for text, given in wanted.items():
        address = parse_address(text)
        setting, found = _find(address, known)
        value = _word(setting, given, is_group=found[0][0].group is not None)
        for place, before in found:
            if str(place) in places:
                raise UsageError(f"{place} is set twice in one change", hint="name it once")
            held = known.held.get(str(place))
            after = in_effect(value, held.own if held else before) if place.group is not None else value
            places[str(place)] = Difference(str(place), before, after)
        values[str(address)] = value
    if not values:
        raise UsageError("there is nothing to set", hint="write NAME=VALUE")
    return values, tuple(places.values())


def _word(setting: Setting, given: object, *, is_group: bool) -> object:
    """The checked value, or for a param group what is to be done with the script's own."""
    if not is_group and mode_of(given) != HOLD and setting.type is not Type.RECORD:
        raise UsageError(
            f"{setting.name} is not a hyperparameter: it cannot be scaled, nor given back to the script",
            hint=f"give {setting.allowed()}",
        )
    if not is_group:
        return setting.parse(given) if isinstance(given, str) else setting.check(given)
    if isinstance(given, str) and given.strip().lower() == OWN:
        given = {OWN: True}
    match mode_of(given):
        case "own":
            return {OWN: True}
        case "scale":
            factor = factor_of(given)
            if setting.type is not Type.FLOAT or (setting.maximum, setting.below) != (None, None):
                raise UsageError(f"{setting.name} cannot be scaled", hint=f"give {setting.allowed()}")
            if factor is None:
                raise UsageError(
                    f"{setting.name} cannot be scaled by {given[SCALE]!r}",  # type: ignore[index]
                    hint="give a number, at least 0",
                )
            return {SCALE: factor}
        case _:
            return setting.parse(given) if isinstance(given, str) else setting.check(given)


def _find(address: Address, known: KnownSettings) -> tuple[Setting, list[tuple[Address, object]]]:
    """The setting an address is about, and the places it names with their present values."""
    for setting in known.declared:
        if setting.name == address.name and address == Address(setting.name):
            return setting, [(address, known.values.get(setting.name))]
    if address.name not in known.names() or address.name not in HYPERPARAMETERS:
        raise unknown_name(address.name, known.names())
    found = [
        (place, group[address.name])
        for number, optimizer in enumerate(known.optimizers)
        for at, group in enumerate(optimizer)
        if address.covers(place := Address(address.name, number, at)) and address.name in group
    ]
    if not found:
        if address.optimizer is not None and address.optimizer >= len(known.optimizers):
            last = len(known.optimizers) - 1
            hint = f"the last is optimizer{last}" if last >= 0 else "none has stepped yet"
            raise UsageError(f"there is no optimizer{address.optimizer}", hint=hint)
        shape = ", ".join(
            f"optimizer{n} has {len(groups)} groups" for n, groups in enumerate(known.optimizers)
        )
        raise UsageError(f"{address} names no param group", hint=f"count from 0: {shape}")
    setting, present = HYPERPARAMETERS[address.name], found[0][1]
    if isinstance(present, list | tuple) and setting.type is Type.FLOAT:  # Adafactor's eps are two
        setting = replace(setting, type=Type.NUMBERS, count=len(present))
    return setting, found
