"""Own times of ranks that may be compared: a step without its waits for others. Judges nobody.

Looks at thousands of ranks must stay cheap, so what several rules need is worked out once (`Peers`), and a
median over all ranks and steps is taken over some dozens of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from torchloom.core.detect.robust import median
from torchloom.core.detect.window import RankWindow

MAX_STEPS = 32
SAMPLED = 64
"""Ranks whose steps are looked at for a median over all ranks and steps."""


def own_times(windows: Sequence[RankWindow], newest: int = MAX_STEPS) -> dict[int, list[int]]:
    """Own time of every rank, at least 1 ns, in the newest steps that all of them have completed."""
    peers = Peers.of(windows)
    if newest >= peers.shared:
        return peers.own
    return {rank: times[-newest:] for rank, times in peers.own.items()}


def _own_times(windows: Sequence[RankWindow], newest: int) -> dict[int, list[int]]:
    if not all(w.steps for w in windows):
        return {w.rank: [] for w in windows}
    first = max((w.steps[0].step for w in windows), default=0)
    last = min((w.steps[-1].step for w in windows), default=-1)
    if all(w.steps[-1].step - w.steps[0].step == len(w.steps) - 1 for w in windows):
        # Nearly always: no window has a gap, so the same steps are a slice of each.
        first = max(first, last - newest + 1)
        if last < first:
            return {w.rank: [] for w in windows}
        number = last - first + 1
        found = {}
        for w in windows:
            at = first - w.steps[0].step
            found[w.rank] = [
                own if (own := s.step_ns - s.wait_ns) > 0 else 1 for s in w.steps[at : at + number]
            ]
        return found
    tables = [{s.step: max(1, s.own_ns) for s in w.steps} for w in windows]
    steps = sorted(set(tables[0]).intersection(*tables[1:]))[-newest:]
    return {w.rank: [table[s] for s in steps] for w, table in zip(windows, tables, strict=True)}


class Peers(tuple[RankWindow, ...]):
    """Ranks that may be compared with each other. What several rules need is worked out once: looks at
    thousands of ranks must stay cheap."""

    @classmethod
    def of(cls, windows: Sequence[RankWindow]) -> Peers:
        return windows if isinstance(windows, Peers) else cls(windows)

    @cached_property
    def own(self) -> dict[int, list[int]]:
        """Own times of the newest steps that all have completed."""
        return _own_times(self, MAX_STEPS)

    @cached_property
    def shared(self) -> int:
        """How many steps that are."""
        return len(next(iter(self.own.values()), []))

    @cached_property
    def ordered(self) -> list[list[int]]:
        """For each of these steps the own times of all ranks, in order."""
        return [sorted(column) for column in zip(*self.own.values(), strict=True)]

    @cached_property
    def typical(self) -> dict[int, float]:
        """By rank, the median of its own times."""
        return {rank: median(times) for rank, times in self.own.items() if times}


def sample(windows: Sequence[RankWindow]) -> Sequence[RankWindow]:
    """At most some dozens of them, evenly: enough for a median over all their steps."""
    return windows[:: -(-len(windows) // SAMPLED)] if len(windows) > SAMPLED else windows


def typical_step_ns(windows: Sequence[RankWindow], steps: int = MAX_STEPS) -> float:
    """The median over ranks and newest steps; 0 if there are none."""
    times = [s.step_ns for w in sample(windows) for s in w.steps[-steps:]] if steps else []
    return median(times) if times else 0.0
