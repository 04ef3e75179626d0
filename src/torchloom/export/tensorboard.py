"""A job's numbers (what it logged, settings, speed, step times) as TensorBoard scalars.

Series are kept by time; a value's step is the step the job was at then.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchloom.export.events_file import EventsFile

if TYPE_CHECKING:
    from torchloom.client.schema import JobSeries

_PLACES = {"metric": "loom", "setting": "settings"}


class Scalars:
    """Writes each point once, however often the series are read."""

    def __init__(self, file: EventsFile) -> None:
        self._file = file
        self._written: dict[str, float] = {}
        self.count = 0

    def write(self, found: JobSeries, final: bool) -> None:
        """Write what is new. The newest point of a series still changes and is written if `final`."""
        steps = next((one for one in found["series"] if one["name"] == "step"), None)
        for one in found["series"]:
            if one["name"] == "step":
                continue
            after = self._written.get(one["name"], -math.inf)
            last = len(one["at_s"]) if final else len(one["at_s"]) - 1
            for at_s, value in list(zip(one["at_s"], one["mean"], strict=True))[:last]:
                if at_s > after and value is not None:
                    step = _step_at(at_s, steps["at_s"], steps["mean"]) if steps else 0
                    self._file.scalar(_tag(one["name"]), value, step, at_s)
                    self._written[one["name"]] = at_s
                    self.count += 1
        self._file.flush()


def _tag(name: str) -> str:
    kind, colon, rest = name.partition(":")
    return f"{_PLACES.get(kind, kind)}/{rest}" if colon else f"job/{name}"


def _step_at(at_s: float, times: Sequence[float], steps: Sequence[float | None]) -> int:
    """The step at a time, between the two known ones next to it."""
    known = [(at, step) for at, step in zip(times, steps, strict=True) if step is not None]
    if not known:
        return 0
    place = bisect_left(known, (at_s, -math.inf))
    if place == 0 or place == len(known):
        return round(known[min(place, len(known) - 1)][1])
    (before, low), (after, high) = known[place - 1], known[place]
    return round(low + (high - low) * (at_s - before) / (after - before))
