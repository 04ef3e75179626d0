"""A rank that is much slower than its peers now and then, at no regular interval: a program that stops and
continues it, another one that takes its core, a disk that stalls.

No median shows it, and in the newest steps there are too few of it: so the long steps of each rank are
remembered. Chance (garbage, a busy host) makes long steps on all ranks, so a rank is named only if it has
many and the others have hardly any. Pure: memory in, memory out.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from torchloom.core.detect.own_times import Peers, typical_step_ns
from torchloom.core.detect.window import RankWindow

LONG = 1.8
"""A long step takes so many times as long as the middle of the peers …"""
PAUSE = 8.0
"""… and what takes more than this is a pause: it saves or evaluates."""
SPAN = 256
"""Steps that are remembered."""
OFTEN = 12
"""Long steps, not in a row, from which on a rank is named: one in twenty, more often than a rank saves …"""
OFTEN_IF_SEEN = 4
"""… and from which on if it was seen what makes them long …"""
OTHERS = 8
"""… and for so many of them another rank may have one."""
COSTS = 0.05
"""The least part of the time that they must take from the job."""
_CROWD = 8
"""Where more than one in so many ranks has long steps at once, they are chance, and nobody's are kept."""
STOPS_SEEN = 2
"""Looks that found it stopped, from which on that is what makes it slow."""
_START = 10
"""The first steps are set-up."""
_OVER = 3
"""It is over when there was none for so many times the usual distance."""


class LongSteps(Struct, frozen=True):
    """What is remembered."""

    step: int = 0
    """The newest that was looked at …"""
    looked: int = 0
    """… and how many were."""
    by_rank: dict[int, tuple[tuple[int, int], ...]] = {}
    """Steps and what each took more than the middle of the peers, in nanoseconds."""


class Burst(Struct, frozen=True):
    """A rank that is much slower than its peers now and then."""

    rank: int
    times: int
    among: int
    """So many long steps among so many."""
    excess_ns: float
    """Of one of them, in the mean."""
    step_ns: float
    """What a step usually takes."""
    share: float
    """Of the job's time."""


def note(roles: Iterable[Peers], known: LongSteps) -> LongSteps:
    """Take the newest steps into account."""
    newest, looked, by_rank = known.step, 0, dict(known.by_rank)
    for peers in roles:
        steps = peers.steps
        fresh = sum(step > max(known.step, _START) for step in steps)
        if len(peers) < 2 or not fresh:
            continue
        newest, looked = max(newest, steps[-1]), max(looked, fresh)
        middles = peers.smallest((len(peers) - 1) // 2)
        found = peers.beyond(LONG * min(middles[-fresh:]))
        if len(found) > max(2, len(peers) // _CROWD):
            for rank in by_rank.keys() & peers.row.keys():
                del by_rank[rank]
            continue
        for rank, times in found.items():
            each = zip(steps[-fresh:], times[-fresh:], middles[-fresh:], strict=True)
            long = [
                (step, round(own - middle))
                for step, own, middle in each
                if LONG * middle < own <= PAUSE * middle
            ]
            if long:
                by_rank[rank] = (*by_rank.get(rank, ()), *long)
    first = newest - SPAN
    kept = {rank: tuple(one for one in some if one[0] > first) for rank, some in by_rank.items()}
    return LongSteps(newest, known.looked + looked, {rank: some for rank, some in kept.items() if some})


def bursts(peers: Peers, known: LongSteps) -> list[Burst]:
    """The ranks of one role that take long now and then, while the others do not."""
    if len(peers) < 2 or not known.by_rank:
        return []
    among = min(SPAN, known.looked)
    step_ns = typical_step_ns(peers)
    count = {rank: _apart(some) for rank, some in known.by_rank.items() if rank in peers.row}
    found = []
    for rank, times in count.items():
        if times < (OFTEN_IF_SEEN if is_stopped_often(peers.window(rank)) else OFTEN):
            continue
        if max((other for one, other in count.items() if one != rank), default=0) > times // OTHERS:
            continue
        long = known.by_rank[rank]
        lost = sum(excess for _, excess in long)
        share = lost / max(1.0, among * step_ns + lost)
        if share >= COSTS and known.step - long[-1][0] <= _OVER * among / times:
            found.append(Burst(rank, len(long), among, lost / len(long), step_ns, share))
    return found if 2 * len(found) <= len(peers) else []


def is_stopped_often(window: RankWindow) -> bool:
    """Whether it was seen stopped several times lately, and runs in between."""
    return window.process.stops >= STOPS_SEEN


def _apart(long: Iterable[tuple[int, int]]) -> int:
    """How many there are, those in a row counted once."""
    steps = {step for step, _ in long}
    return sum(step - 1 not in steps for step in steps)
