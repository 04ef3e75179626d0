"""Own times of ranks that may be compared: a step without its waits for others. Judges nobody.

Looks at thousands of ranks must stay cheap, so what several rules need is worked out once (`Peers`), and a
median over all ranks and steps is taken over some dozens of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from torchloom.core.detect.robust import median, spread
from torchloom.core.detect.wide import Table, middles, smallest, spreads, table, worth_it
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
    span = _span(windows, newest)
    if span is not None:
        first, number = span
        if number <= 0:
            return {w.rank: [] for w in windows}
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


def _span(windows: Sequence[RankWindow], newest: int) -> tuple[int, int] | None:
    """The first of the newest steps that all have completed, and how many there are. Nearly always no window
    has a gap, so the same steps are a slice of each; else None."""
    first, last = 0, 1 << 62
    for window in windows:
        steps = window.steps
        began, ended = steps[0].step, steps[-1].step
        if ended - began != len(steps) - 1:
            return None
        first, last = max(first, began), min(last, ended)
    first = max(first, last - newest + 1)
    return first, last - first + 1


class Peers(tuple[RankWindow, ...]):
    """Ranks that may be compared with each other. What several rules need is worked out once: looks at
    thousands of ranks must stay cheap."""

    @classmethod
    def of(cls, windows: Sequence[RankWindow]) -> Peers:
        return windows if isinstance(windows, Peers) else cls(windows)

    @cached_property
    def table(self) -> Table | None:
        """The same as `own`, as an array, where the job is large enough and no window has a gap."""
        if not worth_it(len(self)) or not all(w.steps for w in self):
            return None
        span = _span(self, MAX_STEPS)
        if span is None or span[1] <= 0 or len({w.rank for w in self}) < len(self):
            return None
        return table(self, *span)

    @cached_property
    def own(self) -> dict[int, list[int]]:
        """Own times of the newest steps that all have completed."""
        if self.table is not None:
            return dict(zip(self.table.ranks, self.table.own.tolist(), strict=True))
        return _own_times(self, MAX_STEPS)

    @cached_property
    def shared(self) -> int:
        """How many steps that are."""
        if self.table is not None:
            return self.table.steps
        return len(next(iter(self.own.values()), []))

    def beyond(self, least_ns: float) -> dict[int, list[int]]:
        """Own times of the ranks that took longer than this in any step."""
        if self.table is not None:
            rows = self.table.own.max(axis=1) > least_ns
            ranks = [rank for rank, long in zip(self.table.ranks, rows.tolist(), strict=True) if long]
            return dict(zip(ranks, self.table.own[rows].tolist(), strict=True))
        return {rank: times for rank, times in self.own.items() if max(times) > least_ns}

    def smallest(self, place: int) -> list[int]:
        """For each of these steps the own time at this place in their order."""
        if self.table is not None:
            return smallest(self.table, place)
        return [times[place] for times in self._ordered]

    @cached_property
    def middles(self) -> list[float]:
        """For each of these steps the median own time."""
        if self.table is not None:
            return list(middles(self.table.own).tolist())
        return [median(times) for times in self._ordered]

    def spreads(self, newest: int) -> list[float]:
        """For each of the newest of these steps, how much the ranks differ."""
        if self.table is not None:
            return spreads(self.table.own[:, -newest:], self.middles[-newest:])
        pairs = zip(self._ordered[-newest:], self.middles[-newest:], strict=True)
        return [spread(times, middle) for times, middle in pairs]

    @cached_property
    def _ordered(self) -> list[list[int]]:
        """For each of these steps the own times of all ranks, in order."""
        return [sorted(column) for column in zip(*self.own.values(), strict=True)]

    @cached_property
    def typical(self) -> dict[int, float]:
        """By rank, the median of its own times."""
        if self.table is not None:
            return dict(zip(self.table.ranks, middles(self.table.own, axis=1).tolist(), strict=True))
        return {rank: median(times) for rank, times in self.own.items() if times}


def sample(windows: Sequence[RankWindow]) -> Sequence[RankWindow]:
    """At most some dozens of them, evenly: enough for a median over all their steps."""
    return windows[:: -(-len(windows) // SAMPLED)] if len(windows) > SAMPLED else windows


def typical_step_ns(windows: Sequence[RankWindow], steps: int = MAX_STEPS) -> float:
    """The median over ranks and newest steps; 0 if there are none."""
    times = [s.step_ns for w in sample(windows) for s in w.steps[-steps:]] if steps else []
    return median(times) if times else 0.0
