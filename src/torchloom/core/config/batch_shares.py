"""Uneven shares of a global batch, as text: which ranks take fewer samples of every step than the others.

    even                 every rank takes the same
    3:0.5 of 4           rank 3 of 4 takes half as many samples as each of the others

Shares name ranks, so they hold only in the world that they were made for; in any other world every rank
takes the same. Standard library only, because ranks read it, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from torchloom.errors import UsageError

EVEN = "even"
WHOLE = 1000
"""What a rank that takes as much as the others takes, in thousandths."""
LightRanks = tuple[tuple[int, int], ...]
"""Ranks that take less than the others, and how many thousandths of that; by rank."""
_TEXT = re.compile(r"(\d+:\d*\.?\d+(?:,\d+:\d*\.?\d+)*) of (\d+)")
HINT = f"give {EVEN!r}, or as '3:0.5 of 4' the ranks that take less and the number of ranks"


class BatchShares(NamedTuple):
    """Which ranks of how many take less."""

    world: int = 0
    light: LightRanks = ()
    """(rank, thousandths of what another rank takes), by rank."""

    def of(self, world: int) -> LightRanks:
        return self.light if world == self.world else ()


def read_shares(text: Any) -> BatchShares:
    """UsageError if it means nothing."""
    word = text.strip() if isinstance(text, str) else None
    if word in (EVEN, ""):
        return BatchShares()
    found = _TEXT.fullmatch(word) if word is not None else None
    if found is None:
        raise UsageError(f"shares of {str(text)[:40]!r} are impossible", hint=HINT)
    world = int(found[2])
    light = {}
    for part in found[1].split(","):
        rank, _, share = part.partition(":")
        thousandths = round(float(share) * WHOLE)
        if not 0 < thousandths <= WHOLE:
            raise UsageError(f"a share of {share} is impossible", hint="give a number above 0 and up to 1")
        if int(rank) >= world or int(rank) in light:
            raise UsageError(f"rank {rank} of {world} is named twice or does not exist", hint=HINT)
        light[int(rank)] = thousandths
    return BatchShares(world, tuple(sorted((r, t) for r, t in light.items() if t < WHOLE)))


def write_shares(shares: BatchShares) -> str:
    if not shares.light:
        return EVEN
    return f"{','.join(f'{rank}:{share / WHOLE:g}' for rank, share in shares.light)} of {shares.world}"


def shares_of(world: int, weights: Mapping[int, float]) -> BatchShares:
    """By rank, what it takes of what another rank takes."""
    light = {rank: round(weight * WHOLE) for rank, weight in weights.items()}
    return BatchShares(world, tuple(sorted((rank, part) for rank, part in light.items() if part < WHOLE)))
