"""The rules of other tools, written anew, over the windows that our detectors get; and intervals of 95 %."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchloom.core.detect.comparable import by_role
from torchloom.core.detect.robust import median
from torchloom.model.windows import RankWindow

Windows = Sequence[RankWindow]
Said = tuple[str, tuple[int, ...]] | None


def watchdog_600(windows: Windows) -> Said:
    """A collective in progress for 600 s: the job is ended, no rank is named."""
    old = any((c := w.waits()) is not None and w.age_s(c) >= 600 for w in windows)
    return ("hang", ()) if old else None


def all_hung_300(windows: Windows) -> Said:
    return ("hang", ()) if all(w.idle_s >= 300 for w in windows) else None


def score_075(windows: Windows) -> Said:
    """The fastest peer's time over one's own below 0.75 is a straggler."""
    late = [
        r
        for peers in by_role(windows).values()
        if (own := _own(peers))
        for r, t in own.items()
        if min(own.values()) / t < 0.75
    ]
    return ("slow", tuple(sorted(late))) if late else None


def twice_the_median(windows: Windows) -> Said:
    late = [
        r
        for peers in by_role(windows).values()
        if (own := _own(peers))
        for r, t in own.items()
        if t > 2 * median(list(own.values()))
    ]
    return ("slow", tuple(sorted(late))) if late else None


def _own(peers: Windows) -> dict[int, float]:
    return {w.rank: median([s.own_ns for s in w.steps[-8:]]) for w in peers if len(w.steps) >= 5}


PEERS: dict[str, Callable[[Windows], Said]] = {
    "watchdog 600 s": watchdog_600,
    "all hung 300 s": all_hung_300,
    "score < 0.75": score_075,
    "> 2× median": twice_the_median,
}


def interval(hits: int, n: int) -> str:
    """Wilson's interval of 95 %."""
    if not n:
        return "–"
    z, p = 1.96, hits / n
    middle, half = p + z * z / 2 / n, z * ((p * (1 - p) + z * z / 4 / n) / n) ** 0.5
    low, high = (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)
    return f"{100 * low:.0f}–{100 * high:.0f} %"
