"""Spans of time as people type them: 90, 45s, 10m, 2h, 7d. Pure."""

from __future__ import annotations

import math
import re

from torchloom.errors import UsageError

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw]?)")


def parse_span(text: str, what: str, least_s: float = 0.0, most_s: float = math.inf) -> float:
    """Seconds. `1h30m` is allowed; a number alone is seconds."""
    total, at = 0.0, 0
    given = text.strip().lower()
    while at < len(given):
        found = _PART.match(given, at)
        if found is None:
            break
        total += float(found[1]) * _UNITS[found[2]]
        at = found.end()
    if not given or at < len(given):
        raise UsageError(f"{what} {text!r} is not a span of time", hint="write 45s, 10m, 2h or 7d")
    if not least_s <= total <= most_s:
        raise UsageError(f"{what} is {least_s:g} s to {most_s:g} s, not {text}")
    return total
