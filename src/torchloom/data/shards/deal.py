"""Dealing shards to ranks, and dealing again what is unfinished when the number of ranks changes. Pure.

A **piece** is a run of places in one shard. An epoch begins as one piece per shard; pieces are dealt
round-robin by rank and then **levelled**: ranks with more lines than their fair share give the ends of their
lists to those with less, so that all ranks have the same number of lines, give or take one. (Without that,
ranks would end the epoch at different steps and the others would hang in a collective.) A rank reads its
pieces in order, so one number, the lines consumed, is its whole cursor. Given the cursors of all ranks of the
old world, what is left over is gathered and dealt again: every line is seen exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    """Places `start` to before `stop` of a shard."""

    shard: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


def total(pieces: Sequence[Piece]) -> int:
    return sum(piece.stop - piece.start for piece in pieces)


def deal(pieces: Sequence[Piece], world: int) -> list[list[Piece]]:
    """Round-robin by rank, then levelled."""
    hands = [list(pieces[rank::world]) for rank in range(world)]
    each, more = divmod(total(pieces), world)
    fair = [each + (rank < more) for rank in range(world)]
    surplus: list[Piece] = []
    for rank, hand in enumerate(hands):
        spare = total(hand) - fair[rank]
        given: list[Piece] = []
        while spare > 0:
            last = hand.pop()
            keep = max(last.size - spare, 0)
            if keep:
                hand.append(Piece(last.shard, last.start, last.start + keep))
            given.append(Piece(last.shard, last.start + keep, last.stop))
            spare -= last.size - keep
        surplus.extend(reversed(given))
    surplus.reverse()
    for rank, hand in enumerate(hands):
        lacking = fair[rank] - total(hand)
        while lacking > 0:
            first = surplus.pop()
            taken = min(first.size, lacking)
            hand.append(Piece(first.shard, first.start, first.start + taken))
            if taken < first.size:
                surplus.append(Piece(first.shard, first.start + taken, first.stop))
            lacking -= taken
    return hands


def rest(pieces: Sequence[Piece], consumed: int) -> list[Piece]:
    """What a rank has left of its pieces after so many lines."""
    left: list[Piece] = []
    for piece in pieces:
        skipped = min(consumed, piece.size)
        consumed -= skipped
        if skipped < piece.size:
            left.append(Piece(piece.shard, piece.start + skipped, piece.stop))
    return left


def part(pieces: Sequence[Piece], start: int, stop: int) -> Iterator[Piece]:
    """Lines number `start` to before `stop` of a rank's pieces, as far as there are any."""
    before = 0
    for piece in pieces:
        if before >= stop:
            return
        first, last = max(0, start - before), min(piece.size, stop - before)
        if first < last:
            yield Piece(piece.shard, piece.start + first, piece.start + last)
        before += piece.size


def left_over(pieces: Sequence[Piece], consumed: Sequence[int]) -> list[Piece]:
    """What nobody has read, given the lines consumed by each rank of the world these pieces were dealt to.

    The pieces keep the order in which their shards came, and neighbours grow together again.
    """
    order: dict[int, int] = {}
    for piece in pieces:
        order.setdefault(piece.shard, len(order))
    hands = deal(pieces, len(consumed))
    left = (
        piece
        for hand, count in zip(hands, consumed, strict=True)
        for piece in rest(hand, count)
        if piece.size
    )
    return gathered(left, order)


def gathered(pieces: Iterable[Piece], order: Mapping[int, int]) -> list[Piece]:
    """Pieces in the order of their shards, neighbours grown together. `order`: shard → its number."""
    joined: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: (order[piece.shard], piece.start)):
        if joined and joined[-1].shard == piece.shard and joined[-1].stop == piece.start:
            joined[-1] = Piece(piece.shard, joined[-1].start, piece.stop)
        else:
            joined.append(piece)
    return joined


def batches(pieces: Sequence[Piece], size: int) -> Iterator[list[Piece]]:
    """Cut a rank's pieces into batches of `size` lines; the last one may be shorter."""
    batch: list[Piece] = []
    room = size
    for shard, start, stop in pieces:
        while start < stop:
            taken = min(room, stop - start)
            batch.append(Piece(shard, start, start + taken))
            start += taken
            room -= taken
            if not room:
                yield batch
                batch, room = [], size
    if batch:
        yield batch
