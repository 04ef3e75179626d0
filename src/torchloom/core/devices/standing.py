"""Where a measurement of a device stands among those of the others. Pure arithmetic."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median

from torchloom.model.device_wear import TestMetric

COMPARABLE = 5
"""With fewer values there is no distribution to compare with."""
SPREAD = 3 * 1.4826
"""Robust standard deviations (of the median's absolute deviation) that are within the usual spread."""
_MORE_IS_BETTER = re.compile(r"bw|bandwidth|throughput|flops|iops", re.I)
_LESS_IS_BETTER = re.compile(r"time|cost|latency|(^|[_-])lat([_-]|$)|overhead|duration|sharding", re.I)
_TIMED = ("cublas-function/", "cudnn-function/")
"""SuperBench's benchmarks whose metrics are times without saying so."""


def less_is_better(metric: str) -> bool:
    """Judged by its name: times, latencies, costs and overheads; of anything else more is better. What
    stands before the last slash is the benchmark, which may be one of bandwidths and latencies."""
    if metric.startswith(_TIMED):
        return True
    name = metric.rpartition("/")[2]
    return _MORE_IS_BETTER.search(name) is None and _LESS_IS_BETTER.search(name) is not None


def beside(name: str, value: float, values: Sequence[float]) -> TestMetric:
    """A measurement beside all of its kind, its own included."""
    if len(values) < COMPARABLE:
        return TestMetric(name=name, value=value)
    middle = median(values)
    spread = SPREAD * median(abs(one - middle) for one in values)
    worse_by = value - middle if less_is_better(name) else middle - value
    others = len(values) - 1
    worse = sum(one > value if less_is_better(name) else one < value for one in values)
    short = worse_by / abs(middle) if middle and worse_by > spread else 0.0
    return TestMetric(
        name=name, value=value, median=middle, worse=worse / others, shortfall=max(0.0, min(1.0, short))
    )
