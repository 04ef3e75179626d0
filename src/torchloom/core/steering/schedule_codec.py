"""The schedule as the JSON that a starting worker finds in its black box.

    [{"version": 3, "step": 40, "values": {"lr": 0.1}}, …]

Only what a rank needs: who and why stay with the job. What is too long is made shorter by merging the oldest
entries into one, which changes nothing for a rank that starts after them.
"""

from __future__ import annotations

import json
from typing import Any

from torchloom.core.steering.schedule import merge
from torchloom.model.transaction.config import Entry, Schedule

MOST_BYTES = 65536 - 24
"""Room in the black box (SCHEDULE in wire/blackbox.py)."""


def pack_schedule(schedule: Schedule, most: int = MOST_BYTES) -> str:
    """JSON that fits. ValueError when not even the merged entry does, which no job's config comes near."""
    entries = tuple(schedule)
    while True:
        rows = [{"version": e.version, "step": e.step, "values": dict(e.values)} for e in entries]
        text = json.dumps(rows, separators=(",", ":"))
        if len(text.encode()) <= most:
            return text
        if len(entries) < 2:
            raise ValueError(f"a config of {len(text)} bytes does not fit into {most}")
        old = entries[: max(2, len(entries) // 4)]
        entries = (Entry(old[-1].version, old[-1].step, merge(old)), *entries[len(old) :])


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
