"""Points that `loom wait` waits for, and spans of time."""

from __future__ import annotations

from typing import Any

import pytest

from torchloom.cli.jobs.wait import Point
from torchloom.durations import parse_span
from torchloom.errors import UsageError


def view(state: str, step: int = 0) -> Any:
    return {"state": state, "step": step, "ended": state in ("completed", "failed", "stopped")}


@pytest.mark.parametrize(
    ("point", "state", "step", "reached", "impossible"),
    [
        ("completed", "running", 3, False, False),
        ("completed", "completed", 3, True, False),
        ("completed", "failed", 3, False, True),
        ("ended", "failed", 3, True, False),
        ("ended", "backoff", 3, False, False),
        ("running", "running", 3, True, False),
        ("running", "completed", 3, False, True),
        ("state=backoff", "backoff", 3, True, False),
        ("step=4", "running", 3, False, False),
        ("step=4", "running", 5, True, False),
        ("step=4", "completed", 3, False, True),
        ("deleted", "completed", 3, False, False),
    ],
)
def test_points(point: str, state: str, step: int, reached: bool, impossible: bool) -> None:
    wanted = Point.parse(point)
    assert wanted.reached(view(state, step)) is reached
    assert wanted.impossible(view(state, step)) is impossible


@pytest.mark.parametrize("text", ["", "finished", "step", "step=", "step=x", "step=-1", "state=", "ended=1"])
def test_what_is_no_point(text: str) -> None:
    with pytest.raises(UsageError, match="--for"):
        Point.parse(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("45s", 45), ("10m", 600), ("1h30m", 5400), ("7d", 604800), ("250ms", 0.25)],
)
def test_spans(text: str, seconds: float) -> None:
    assert parse_span(text, "--timeout") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "x", "-3", "5 apples", "1h x", "inf", "nan"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(UsageError, match="--timeout"):
        parse_span(text, "--timeout")
