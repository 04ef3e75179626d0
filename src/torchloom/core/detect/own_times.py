"""Own times of ranks that may be compared: a step without its waits for others. Judges nobody.

Looks at thousands of ranks must stay cheap, so what several rules need is worked out once (`Peers`), and a
median over all ranks and steps is taken over some dozens of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TypeVar, overload

from torchloom.core.detect.board import WindowBoard
from torchloom.core.detect.robust import median, spread
from torchloom.core.detect.wide import Table, data_waits, middles, smallest, spreads, table, worth_it
from torchloom.core.detect.window import RankWindow

T = TypeVar("T")
MAX_STEPS = 32
SAMPLED = 64
"""Ranks whose steps are looked at for a median over all ranks and steps."""


def own_times(windows: Sequence[RankWindow], newest: int = MAX_STEPS) -> dict[int, list[int]]:
    """Own time of every rank, at least 1 ns, in the newest steps that all of them have completed."""
    peers = Peers.of(windows)
    if newest >= peers.shared:
        return peers.own
    return {rank: times[-newest:] for rank, times in peers.own.items()}


class Peers(Sequence[RankWindow]):
    """Ranks that may be compared with each other. What several rules need is worked out once: looks at
    thousands of ranks must stay cheap."""

    def __init__(self, board: WindowBoard, rows: Sequence[int]) -> None:
        self.board, self.rows = board, rows
        """Where they are, and in which rows."""
        self._sampled: dict[int, tuple[float, float]] = {}

    @classmethod
    def of(cls, windows: Sequence[RankWindow], rows: Sequence[int] | None = None) -> Peers:
        """All of these windows, or those in some rows of a board."""
        if isinstance(windows, Peers):
            return windows
        board = WindowBoard.of(windows)
        return cls(board, range(len(board)) if rows is None else rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[RankWindow]:
        return iter(self.board) if self._whole else map(self.board.__getitem__, self.rows)

    @overload
    def __getitem__(self, place: int) -> RankWindow: ...
    @overload
    def __getitem__(self, place: slice) -> list[RankWindow]: ...
    def __getitem__(self, place: int | slice) -> RankWindow | list[RankWindow]:
        found = self.rows[place]
        return self.board[found] if isinstance(found, int) else [self.board[row] for row in found]

    @property
    def _whole(self) -> bool:
        return isinstance(self.rows, range) and len(self.rows) == len(self.board)

    @cached_property
    def ranks(self) -> Sequence[int]:
        return self.board.ranks if self._whole else [self.board.ranks[row] for row in self.rows]

    @cached_property
    def row(self) -> dict[int, int]:
        """By rank, where it is."""
        return dict(zip(self.ranks, self.rows, strict=True))

    def of_rows(self, column: Sequence[T]) -> list[T]:
        """The part of a column of the board that is theirs."""
        return list(column) if self._whole else [column[row] for row in self.rows]

    def sampled_ns(self, newest: int) -> tuple[float, float]:
        """How long the newest steps took and waited for data, in the median over some ranks."""
        if newest not in self._sampled:
            took, data = self.board.newest_ns(_some(self.rows), newest)
            self._sampled[newest] = (median(took), median(data)) if took else (0.0, 0.0)
        return self._sampled[newest]

    def window(self, rank: int) -> RankWindow:
        return self.board[self.row[rank]]

    @cached_property
    def steps(self) -> Sequence[int]:
        """The newest steps that all have completed."""
        return self.board.common(self.rows)

    @cached_property
    def table(self) -> Table | None:
        """The same as `own`, as an array, where the job is large enough."""
        if not worth_it(len(self)) or not self.steps or len(self.row) < len(self):
            return None
        return table(self.ranks, self.board, self.rows, self.steps)

    def data_wait_ns(self, ranks: Sequence[int], newest: int) -> list[float]:
        """How long each of these ranks waited for data in a step, in the median over its newest steps."""
        if self.table is not None and newest <= len(self.steps) and not self.board.gaps:
            last = self.steps[-1]
            rows = [self.rows[self.table.place[r]] for r in ranks]
            if all(self.board.last[row] == last for row in rows):
                return data_waits(self.board, rows, self.steps[-newest:])
        found = ([s.data_wait_ns for s in self.window(rank).steps[-newest:]] for rank in ranks)
        return [median(times) if times else 0.0 for times in found]

    @cached_property
    def own(self) -> dict[int, list[int]]:
        """Own times of the newest steps that all have completed."""
        if self.table is not None:
            return dict(zip(self.table.ranks, self.table.own.tolist(), strict=True))
        steps = self.steps
        if not self.board.gaps:
            spans = ((w, steps[0] - w.steps[0].step) for w in self) if steps else ((w, 0) for w in self)
            return {
                w.rank: [max(1, s.step_ns - s.wait_ns) for s in w.steps[at : at + len(steps)]]
                for w, at in spans
            }
        tables = [{s.step: max(1, s.own_ns) for s in w.steps} for w in self]
        return {w.rank: [times[s] for s in steps] for w, times in zip(self, tables, strict=True)}

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
            return dict(zip(self.table.ranks, self.table.typical.tolist(), strict=True))
        return {rank: median(times) for rank, times in self.own.items() if times}


def sample(windows: Sequence[RankWindow]) -> Sequence[RankWindow]:
    """At most some dozens of them, evenly: enough for a median over all their steps."""
    return _some(windows)


def _some(of: Sequence[T]) -> Sequence[T]:
    return of[:: -(-len(of) // SAMPLED)] if len(of) > SAMPLED else of


def typical_step_ns(windows: Sequence[RankWindow], steps: int = MAX_STEPS) -> float:
    """The median over ranks and newest steps; 0 if there are none."""
    return Peers.of(windows).sampled_ns(steps)[0] if steps else 0.0
