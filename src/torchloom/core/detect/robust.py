"""Statistics that a few bad values cannot move: median, spread by absolute deviations, robust scores."""

from __future__ import annotations

from collections.abc import Sequence

GAUSSIAN = 1.4826
"""Turns a median absolute deviation into the standard deviation of a Gaussian."""


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    if not ordered:
        raise ValueError("the median of nothing")
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def spread(values: Sequence[float], centre: float | None = None) -> float:
    """Robust standard deviation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    middle = median(values) if centre is None else centre
    return GAUSSIAN * median([abs(v - middle) for v in values])
