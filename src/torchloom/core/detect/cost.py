"""What a straggler costs: how fast the job would be without it. Never negative, zero when nobody is late."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence

from msgspec import Struct

from torchloom.core.detect import wide
from torchloom.core.detect.comparable import by_role
from torchloom.core.detect.own_times import MAX_STEPS, Peers, own_times, typical_step_ns
from torchloom.core.detect.robust import median
from torchloom.core.detect.window import RankWindow


class Cost(Struct, frozen=True):
    steps_per_s: float
    """As it is."""
    lost_steps_per_s: float
    share: float
    """Of the speed the job would have without these ranks."""

    @property
    def without_steps_per_s(self) -> float:
        """The speed that the job would have without these ranks."""
        return self.steps_per_s + self.lost_steps_per_s


def what_if(peers: Sequence[RankWindow], ranks: Collection[int], newest: int = MAX_STEPS) -> Cost:
    """The job with these ranks at the pace of the median of the others of their role.

    In every step the job waits for the slowest; what a rank takes beyond the slowest of the others is time
    nobody would have lost. The median over steps keeps one checkpoint from being called a straggler's.
    """
    peers = Peers.of(peers)
    steps = min(newest, peers.shared)
    step_ns = typical_step_ns(peers, steps)
    if not step_ns:
        return Cost(0.0, 0.0, 0.0)
    if peers.table is not None:
        lost_ns = wide.lost_ns(peers.table, peers.table.rows(ranks), newest)
        return _saved(step_ns, lost_ns or 0.0)
    own = own_times(peers, newest)
    named = [own[r] for r in ranks if r in own]
    others = [t for r, t in own.items() if r not in ranks]
    if not named or not others or step_ns <= 0:
        return Cost(1e9 / step_ns if step_ns > 0 else 0.0, 0.0, 0.0)
    late, rest = map(max, zip(*named, strict=True)), map(max, zip(*others, strict=True))
    return _saved(step_ns, median([a - b for a, b in zip(late, rest, strict=True)]))


def lasting_share(peers: Sequence[RankWindow], ranks: Collection[int]) -> float:
    """What these ranks take beyond any other rank that is slow for good, as a share of the step.

    In a large job somebody collects garbage in every step, so nobody alone ever costs a step: `what_if` is 0
    for each. Medians over the steps leave out what hits a rank now and then, however many ranks there are.
    """
    peers = Peers.of(peers)
    step_ns, typical = typical_step_ns(peers, peers.shared), peers.typical
    named = [typical[r] for r in ranks if r in typical]
    others = [own for r, own in typical.items() if r not in ranks]
    if not named or not others or step_ns <= 0:
        return 0.0
    return max(0.0, (min(named) - max(others)) / step_ns)


def _saved(step_ns: float, lost_ns: float) -> Cost:
    """The job's speed if every step were shorter by so much."""
    if step_ns <= 0:
        return Cost(0.0, 0.0, 0.0)
    saved_ns = min(max(0.0, lost_ns), 0.99 * step_ns)
    now, then = 1e9 / step_ns, 1e9 / (step_ns - saved_ns)
    return Cost(now, then - now, (then - now) / then)


def middle_without(ordered: Sequence[float], one: float) -> float | None:
    """The median of ordered values without one of them; None if there is no other."""
    count = len(ordered) - 1
    if count < 1:
        return None
    place, half = bisect_left(ordered, one), count // 2

    def at(n: int) -> float:
        return ordered[n + (n >= place)]

    return at(half) if count % 2 else (at(half - 1) + at(half)) / 2


class RankCost(Struct, frozen=True, kw_only=True):
    """One rank beside the others of its role; times are medians over the same steps."""

    rank: int
    role: str
    steps: int
    """How many were looked at: the newest that all ranks of the role have completed."""
    own_s: float
    peers_s: float | None
    """The others' own time; None when nobody does the same work."""
    slowest_s: float | None
    """The own time of the slowest of the others in each step: for it the job would wait without this rank."""
    data_s: float
    waits_s: float
    """In collectives, for others."""
    cost: Cost


def per_rank(windows: Sequence[RankWindow], newest: int = MAX_STEPS) -> list[RankCost]:
    """What every rank costs the job, by rank. As `what_if` of each, in one pass over the ranks of a role."""
    found = []
    for role, peers in by_role(windows).items():
        own = own_times(peers, newest)
        steps = len(next(iter(own.values()), []))
        if not steps:
            continue
        highest = [sorted(times[s] for times in own.values())[-2:] for s in range(steps)]
        middles = {rank: median(times) for rank, times in own.items()}
        ordered = sorted(middles.values())
        step_ns = typical_step_ns(peers, steps)
        for window in peers:
            taken = window.steps[-steps:]
            mine = own[window.rank]
            # Without this rank the job waits for the slowest of the others.
            rest = [
                high[0] if len(high) > 1 and t >= high[-1] else high[-1]
                for t, high in zip(mine, highest, strict=True)
            ]
            lost = [t - r for t, r in zip(mine, rest, strict=True)]
            others = middle_without(ordered, middles[window.rank])
            found.append(
                RankCost(
                    rank=window.rank,
                    role=role,
                    steps=steps,
                    own_s=middles[window.rank] / 1e9,
                    peers_s=None if others is None else others / 1e9,
                    slowest_s=None if others is None else median(rest) / 1e9,
                    data_s=median([s.data_wait_ns for s in taken]) / 1e9,
                    waits_s=median([s.wait_ns for s in taken]) / 1e9,
                    cost=_saved(step_ns, median(lost) if others is not None else 0.0),
                )
            )
    return sorted(found, key=lambda one: one.rank)
