"""Settings and schedule as the JSON in a black box. Owns the coding only.

SETTINGS, written by the probe: what can be set and what is held.

    {"settings": [{"name": "dropout", "type": "a number", "minimum": 0.0, "value": 0.1, …}],
     "held": {"optimizer0.lr@0": {"value": 3e-4, "mode": "hold", "own": 1e-3}}}

It was written inside a training process, so anything may be in it: what is not right is a ValueError, and
never half a reading.

SCHEDULE, which a starting worker finds there.

    [{"version": 3, "step": 40, "values": {"lr": 0.1}}, …]

Only what a rank needs: who and why stay with the job. What is too long is made shorter: first by what is
superseded, then by what of the first entries no longer holds after them, which changes nothing for a rank
that starts after them. Every value keeps the version that decided it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchloom.core.config.overrides import HOLD, SCALE, Held
from torchloom.core.config.schedule import hold, superseded
from torchloom.core.config.settings import KnownSettings, Setting, Type
from torchloom.model.transaction.config import Entry, Schedule

MOST_SETTINGS_BYTES = 32768 - 24
"""Room in the black box (SETTINGS in wire/blackbox.py)."""


@dataclass(frozen=True, slots=True)
class ToldSettings:
    """What a worker reports about its settings."""

    settings: tuple[Setting, ...] = ()
    """max_steps and what the script declared; hyperparameters are reported separately."""
    values: Mapping[str, object] = field(default_factory=dict)
    held: Mapping[str, Held] = field(default_factory=dict)
    left_out: int = 0
    """Settings and held places for which there was no room."""


def pack_settings(told: ToldSettings, most: int = MOST_SETTINGS_BYTES) -> bytes:
    """JSON that fits: descriptions give way first, then held places, then the settings declared last."""
    rows = [_setting_out(s) | {"value": told.values.get(s.name)} for s in told.settings]
    held = {place: _held_out(one) for place, one in told.held.items()}
    left_out = told.left_out
    for row in ({}, *rows):
        text = _text(rows, held, left_out)
        if len(text) <= most:
            return text
        row.pop("description", None)
    while True:
        text = _text(rows, held, left_out)
        if len(text) <= most:
            return text
        if len(held) > 64:
            drop = list(held)[len(held) // 2 :]
            held = {place: one for place, one in held.items() if place not in drop}
            left_out += len(drop)
        elif rows:
            drop_rows = max(1, len(rows) // 4)
            rows, left_out = rows[:-drop_rows], left_out + drop_rows
        else:
            return _text([], {}, left_out + len(held))


def unpack_settings(text: str | bytes) -> ToldSettings:
    if not text:
        return ToldSettings()
    try:
        found = json.loads(text)
        rows = found["settings"]
        return ToldSettings(
            settings=tuple(_setting_in(row) for row in rows),
            values={str(row["name"]): row.get("value") for row in rows},
            held={str(place): _held_in(one) for place, one in found["held"].items()},
            left_out=int(found.get("left_out", 0)),
        )
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"this contains no settings: {error!r}") from error


def unwritten(text: str | bytes) -> str:
    """The places that nothing in the script writes, for LOOM_UNWRITTEN of the next process."""
    try:
        held = unpack_settings(text).held
    except ValueError:  # it was written inside the user's process
        return ""
    return ",".join(place for place, one in held.items() if one.stays and "," not in place)


def known(told: ToldSettings, hyperparameters: str | Mapping[str, Any]) -> KnownSettings:
    """A worker's settings and its param groups (probe/observe/hyperparameters.py), put together."""
    try:
        found = json.loads(hyperparameters or "{}") if isinstance(hyperparameters, str) else hyperparameters
        groups = tuple(
            tuple({str(name): value for name, value in group.items()} for group in optimizer["groups"])
            for optimizer in found.get("optimizers", ())
        )
        classes = tuple(str(optimizer.get("name", "")) for optimizer in found.get("optimizers", ()))
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"this contains no hyperparameters: {error!r}") from error
    return KnownSettings(groups, told.settings, told.values, told.held, classes)


def _text(rows: Iterable[dict[str, Any]], held: Mapping[str, Any], left_out: int) -> bytes:
    told: dict[str, Any] = {"settings": list(rows), "held": dict(held)}
    if left_out:
        told["left_out"] = left_out
    return json.dumps(told, separators=(",", ":")).encode()


def _setting_out(setting: Setting) -> dict[str, Any]:
    row: dict[str, Any] = {"name": setting.name, "type": str(setting.type)}
    bounds = {name: getattr(setting, name) for name in ("minimum", "maximum", "below")}
    row |= {name: value for name, value in bounds.items() if value is not None}
    others = {name: getattr(setting, name) for name in ("optional", "count", "description")}
    row |= {name: value for name, value in others.items() if value}
    if setting.choices:
        row["choices"] = list(setting.choices)
    if setting.fields:
        row["fields"] = [_setting_out(field_) for field_ in setting.fields]
    return row


def _setting_in(row: Mapping[str, Any]) -> Setting:
    return Setting(
        name=str(row["name"]),
        type=Type(row["type"]),
        optional=bool(row.get("optional", False)),
        minimum=_number(row.get("minimum")),
        maximum=_number(row.get("maximum")),
        below=_number(row.get("below")),
        choices=tuple(str(choice) for choice in row.get("choices", ())),
        count=int(row.get("count", 0)),
        fields=tuple(_setting_in(field_) for field_ in row.get("fields", ())),
        description=str(row.get("description", "")),
    )


def _held_out(held: Held) -> dict[str, Any]:
    row = {"value": held.value, "mode": held.mode, "own": held.own}
    row |= {} if held.factor is None else {"factor": held.factor}
    return {**row, "stays": True} if held.stays else row


def _held_in(row: Mapping[str, Any]) -> Held:
    mode = str(row["mode"])
    if mode not in (HOLD, SCALE):
        raise ValueError(f"{mode!r} is no way to hold a value")
    return Held(row["value"], mode, row["own"], _number(row.get("factor")), row.get("stays") is True)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


MOST_SCHEDULE_BYTES = 65536 - 24
"""Room in the black box (SCHEDULE in wire/blackbox.py)."""


def pack_schedule(schedule: Schedule, most: int = MOST_SCHEDULE_BYTES) -> str:
    """JSON that fits. ValueError when not even what holds in the end does; no job's config comes near."""
    text = _written(schedule)
    if len(text.encode()) <= most:
        return text
    void = superseded(schedule)
    entries = tuple(entry for entry in schedule if entry.version not in void)
    for sixteenths in range(17):
        first = len(entries) * sixteenths // 16
        text = _written((*_shortened(entries[:first]), *entries[first:]))
        if len(text.encode()) <= most:
            return text
    raise ValueError(f"a config of {len(text)} bytes does not fit into {most}")


def _written(entries: Schedule) -> str:
    rows = [{"version": e.version, "step": e.step, "values": dict(e.values)} for e in entries]
    return json.dumps(rows, separators=(",", ":"))


def _shortened(entries: Schedule) -> Schedule:
    """The values that still hold after the last of these entries, each by its version."""
    by_version: dict[int, dict[str, object]] = {}
    for text, (version, value) in hold(entries).items():
        by_version.setdefault(version, {})[text] = value
    return tuple(Entry(version, entries[-1].step, values) for version, values in by_version.items())


def unpack_schedule(text: str | bytes) -> Schedule:
    """What `pack_schedule` wrote; anything else is a ValueError. Nothing at all is an empty schedule."""
    if not text:
        return ()
    try:
        return tuple(_entry(row) for row in json.loads(text))
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"this is no schedule: {error!r}") from error


def _entry(row: dict[str, Any]) -> Entry:
    return Entry(int(row["version"]), int(row["step"]), dict(row["values"]))
