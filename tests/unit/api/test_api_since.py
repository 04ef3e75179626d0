"""Points in time as clients write them."""

from __future__ import annotations

import pytest

from torchloom.api.since import parse_since
from torchloom.errors import UsageError

NOW = 2_000_000_000 * 10**9


@pytest.mark.parametrize(
    ("text", "at_ns"),
    [
        ("", 0),
        ("10m", NOW - 600 * 10**9),
        ("90", NOW - 90 * 10**9),
        ("1970-01-01T00:00:01Z", 10**9),
        ("1970-01-01T02:00:01.5+02:00", 1_500_000_000),
        ("1960-01-01T00:00:00Z", 1),
        ("9" * 60 + "w", 1),
        ("9999-12-31T23:59:59-12:00", 2**63 - 1),
    ],
)
def test_times_and_spans(text: str, at_ns: int) -> None:
    assert parse_since(text, NOW) == at_ns


@pytest.mark.parametrize("text", ["soon", "-5m", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00", "2026-01-01"])
def test_anything_else_is_refused_in_words(text: str) -> None:
    with pytest.raises(UsageError, match="since"):
        parse_since(text, NOW)
