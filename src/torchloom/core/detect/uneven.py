"""Ranks that are slow now and then: one in every n-th step, or a different one in every step. Medians over
steps show neither. attribute.py turns both into findings.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from torchloom.core.detect.own_times import Peers, typical_step_ns
from torchloom.core.detect.robust import median
from torchloom.core.detect.slow import MIN_STEPS, SlowLimits
from torchloom.core.detect.window import RankWindow

_UNEVEN_STEPS = 16
_PERIODIC_STEPS = 24
"""Steps that all ranks must have completed. Windows are taken at slightly different times, and a device is a
step or two behind its peers', so not all steps that are kept are shared."""
_HITS_PER_OTHER = 6
"""One more long step may be among the others for so many regular ones: nobody has these by chance."""
PERIODIC = ((2.5, 3, 0), (1.8, 4, 1))
"""Slow every n-th step: so much slower than the peers, seen so often, and in at most so many other steps. The
more often it is seen, the less it must stand out …"""
_BY_CHANCE = 1.0
"""… unless the other ranks have such steps, too, more than so many in the mean: then it is chance."""


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
    if steps < _PERIODIC_STEPS or len(peers) < 2:
        return []
    step_ns = typical_step_ns(windows)
    # The upper middle among two would be the late one itself.
    middles = peers.smallest((len(peers) - 1) // 2)
    least = min(ratio for ratio, _, _ in PERIODIC) * min(middles)
    ratios = {
        rank: [took / middle for took, middle in zip(times, middles, strict=True)]
        for rank, times in peers.beyond(least).items()
    }
    named: dict[int, Periodic] = {}
    for ratio, often, others in PERIODIC:
        long = {rank: {s for s, one in enumerate(some) if one > ratio} for rank, some in ratios.items()}
        in_all = sum(map(len, long.values()))
        for rank, places in long.items():
            hits = _regular(places, steps, often, others)
            elsewhere = (in_all - len(places)) / (len(peers) - 1)
            by_chance = (others or len(places) > len(hits)) and elsewhere > _BY_CHANCE
            if rank in named or not hits or by_chance:
                continue
            excess = median([(ratios[rank][s] - 1) * middles[s] for s in hits])
            if excess / hits.step >= limits.matters * step_ns:
                named[rank] = Periodic(rank, hits.step, median([ratios[rank][s] for s in hits]), excess)
    found = list(named.values())
    return found if len(found) <= max(1, len(peers) // 2) else []


def _regular(long: set[int], steps: int, often: int, others: int) -> range:
    """The regular places of these steps, if there are at least so many and only some others."""
    for every in range(2, steps // often + 1):
        for first in range(every):
            places = range(first, steps, every)
            most = others + len(places) // _HITS_PER_OTHER
            if len(places) >= often and long.issuperset(places) and len(long) - len(places) <= most:
                return places
    return range(0)


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
