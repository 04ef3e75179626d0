"""The schedule as the JSON that a starting worker finds in its black box.

    [{"version": 3, "step": 40, "values": {"lr": 0.1}}, …]

Only what a rank needs: who and why stay with the job. What is too long is made shorter: first by what is
superseded, then by what of the first entries no longer holds after them, which changes nothing for a rank
that starts after them. Every value keeps the version that decided it.
"""

from __future__ import annotations

import json
from typing import Any

from torchloom.core.config.schedule import hold, superseded
from torchloom.model.transaction.config import Entry, Schedule

MOST_BYTES = 65536 - 24
"""Room in the black box (SCHEDULE in wire/blackbox.py)."""


def pack_schedule(schedule: Schedule, most: int = MOST_BYTES) -> str:
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
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"this is no schedule: {error!r}") from error


def _entry(row: dict[str, Any]) -> Entry:
    return Entry(int(row["version"]), int(row["step"]), dict(row["values"]))
