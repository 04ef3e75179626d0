"""Puts lines of several ranks into the order in which they were printed. Reads nothing and knows no clock."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torchloom.model.messages import LogPiece

AHEAD_NS = 1_000_000_000
"""A line from further in the future has a wrong time; it is not held back."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Lines of one rank that were printed at one time, as far as is known."""

    rank: int
    data: bytes
    offset: int
    at_ns: int
    """0: unknown."""
    lost_bytes: int = 0
    """Bytes before it that were dropped to bound the log."""


def stretches(rank: int, piece: LogPiece, shift_ns: int = 0) -> Iterator[Stretch]:
    """Cut a piece into stretches of whole lines; `shift_ns` is added to the times of its agent's clock."""
    lost, cut, last_ns = piece.lost_bytes, 0, 0
    for end, at_ns in piece.marks:
        # A time set back by the clock would put a line before the one above it.
        last_ns = max(last_ns, at_ns + shift_ns)
        upto = piece.data.rfind(b"\n", cut, max(cut, end - piece.offset)) + 1
        if upto > cut:
            yield Stretch(rank, piece.data[cut:upto], piece.offset + cut, last_ns, lost)
            cut, lost = upto, 0
    if cut < len(piece.data) or lost:
        yield Stretch(rank, piece.data[cut:], piece.offset + cut, last_ns, lost)


class Merge:
    """Holds stretches of each rank until it is known that no earlier one can come from another rank."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[Stretch]] = {}

    def add(self, found: Iterable[Stretch]) -> None:
        for stretch in found:
            self._waiting.setdefault(stretch.rank, deque()).append(stretch)

    def holds(self, rank: int) -> bool:
        return bool(self._waiting.get(rank))

    @property
    def empty(self) -> bool:
        return not any(self._waiting.values())

    def take(self, now_ns: int, horizon_ns: int) -> Iterator[Stretch]:
        """What was printed up to `horizon_ns`, oldest first; times far beyond `now_ns` are unknown ones."""
        heap = [(self._key(waiting[0], now_ns), rank) for rank, waiting in self._waiting.items() if waiting]
        heapq.heapify(heap)
        while heap and heap[0][0] <= horizon_ns:
            _, rank = heap[0]
            waiting = self._waiting[rank]
            yield waiting.popleft()
            if waiting:
                heapq.heapreplace(heap, (self._key(waiting[0], now_ns), rank))
            else:
                heapq.heappop(heap)

    @staticmethod
    def _key(stretch: Stretch, now_ns: int) -> int:
        return 0 if stretch.at_ns > now_ns + AHEAD_NS else stretch.at_ns
