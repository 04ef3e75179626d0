"""Points in time as clients write them: a time as in RFC 3339, or a span of time ago. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from torchloom.durations import parse_span
from torchloom.errors import UsageError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_since(text: str, now_ns: int) -> int:
    """Wall-clock nanoseconds, at least 1; 0 for no text."""
    if not text:
        return 0
    if "-" in text:
        try:
            at = datetime.fromisoformat(text.strip())
            if at.tzinfo is None:
                raise ValueError("no zone")
            return _bounded((at - _EPOCH) // timedelta(microseconds=1) * 1000)
        except (ValueError, OverflowError):
            raise UsageError(
                f"since {text!r} is not a time",
                hint="write 2026-03-01T12:00:00Z, or a span of time ago like 10m",
            ) from None
    return _bounded(now_ns - int(parse_span(text, "since") * 1e9))


def _bounded(at_ns: int) -> int:
    return min(max(1, at_ns), 2**63 - 1)
