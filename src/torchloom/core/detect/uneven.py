"""Ranks that are slow now and then: one in every n-th step, or a different one in every step. Medians over
steps show neither. attribute.py turns both into findings.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from torchloom.core.detect.own_times import MAX_STEPS, Peers, typical_step_ns
from torchloom.core.detect.robust import median
from torchloom.core.detect.slow import MIN_STEPS, SlowLimits
from torchloom.core.detect.window import RankWindow

_UNEVEN_STEPS = 16
PERIODIC = 2.5
_PERIODS = 3
"""Slow every n-th step: so much slower than the peers, and seen so often."""


class Periodic(Struct, frozen=True):
    """A rank that takes much longer than its peers in some steps, at regular intervals."""

    rank: int
    every: int
    ratio: float
    """Against the peers in those steps."""
    excess_ns: float
    """In one of those steps."""


def periodic(windows: Sequence[RankWindow], limits: SlowLimits) -> list[Periodic]:
    """Ranks that are much slower than their peers in every n-th step, which no median shows."""
    peers = Peers.of(windows)
    steps = peers.shared
    if steps < MAX_STEPS or len(peers) < 2:
        return []
    step_ns = typical_step_ns(windows)
    # The upper middle among two would be the late one itself.
    middles = peers.smallest((len(peers) - 1) // 2)
    least = PERIODIC * min(middles)
    found = []
    for rank, times in peers.beyond(least).items():
        long = [s for s in range(steps) if times[s] > PERIODIC * middles[s]]
        gaps = {b - a for a, b in pairwise(long)}
        if len(long) < _PERIODS or len(gaps) != 1:
            continue
        every = gaps.pop()
        excess = median([times[s] - middles[s] for s in long])
        if every > 1 and excess / every >= limits.matters * step_ns:
            found.append(Periodic(rank, every, median([times[s] / middles[s] for s in long]), excess))
    return found if len(found) <= max(1, len(peers) // 2) else []


def unevenness(windows: Sequence[RankWindow], least: float = 0.0) -> tuple[float, float]:
    """How much the ranks of a role differ from step to step: (spread, loss), both as shares.

    The spread counts half of the ranks; a collection of garbage here and there does not move it. The loss is
    what the slowest of a step takes more than the median. Below the `least` loss no spread is worked out.
    """
    peers = Peers.of(windows)
    if peers.shared < MIN_STEPS or len(peers) < 3:
        return 0.0, 0.0
    middles = peers.middles[-_UNEVEN_STEPS:]
    slowest = peers.smallest(len(peers) - 1)[-_UNEVEN_STEPS:]
    loss = median([(most - middle) / middle for most, middle in zip(slowest, middles, strict=True)])
    if loss < least:
        return 0.0, loss
    apart = peers.spreads(_UNEVEN_STEPS)
    return median([one / middle for one, middle in zip(apart, middles, strict=True)]), loss
