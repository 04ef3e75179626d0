"""Which lines of shards the places of an epoch are, and taking those that are left out from pieces. Pure.

A **place** counts the lines in the order in which the epoch has them: shard after shard, each in its own
order. It does not depend on the number of ranks, on the batch or on how often the shards were dealt, so it
can name lines for as long as the data is the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from torchloom.data.shards.deal import Piece

Places = tuple[tuple[int, int], ...]
"""Runs of places, in order and apart from each other: the first, and the one after the last."""


def places_of(pieces: Sequence[Piece], first: Mapping[int, int]) -> list[tuple[int, int]]:
    """The places of each piece. `first` has the first place of every shard."""
    return [(first[piece.shard] + piece.start, first[piece.shard] + piece.stop) for piece in pieces]


def apart(pieces: Sequence[Piece], fresh: Sequence[Piece], skips: Places) -> tuple[list[Piece], list[Piece]]:
    """What is read of the pieces, and what is left out of them, both in the pieces' order. `fresh` is the
    whole epoch."""
    if not skips:
        return list(pieces), []
    first, stops = first_places(fresh), [stop for _, stop in skips]
    kept: list[Piece] = []
    out: list[Piece] = []
    for shard, start, stop in pieces:
        offset = first[shard]
        at, end = offset + start, offset + stop
        for skip_start, skip_stop in skips[bisect_right(stops, at) :]:
            if skip_start >= end:
                break
            if at < skip_start:
                kept.append(Piece(shard, at - offset, skip_start - offset))
            until = min(skip_stop, end)
            out.append(Piece(shard, max(at, skip_start) - offset, until - offset))
            at = until
        if at < end:
            kept.append(Piece(shard, at - offset, stop))
    return kept, out


def first_places(fresh: Sequence[Piece]) -> dict[int, int]:
    """Of every shard of an epoch."""
    before = accumulate((piece.size for piece in fresh), initial=0)
    return {piece.shard: place for piece, place in zip(fresh, before, strict=False)}
