"""What a straggler costs: how fast the job would be without it. Never negative, zero when nobody is late."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from torchloom.core.detect.robust import median
from torchloom.core.detect.slow import MAX_STEPS, own_times
from torchloom.core.detect.window import RankWindow


class Cost(Struct, frozen=True):
    steps_per_s: float
    """As it is."""
    lost_steps_per_s: float
    share: float
    """Of the speed the job would have without these ranks."""


def what_if(peers: Sequence[RankWindow], ranks: Collection[int], newest: int = MAX_STEPS) -> Cost:
    """The job with these ranks at the pace of the median of the others of their role.

    In every step the job waits for the slowest; what a rank takes beyond the slowest of the others is time
    nobody would have lost. The median over steps keeps one checkpoint from being called a straggler's.
    """
    own = own_times(peers, newest)
    steps = len(next(iter(own.values()), []))
    times = [s.step_ns for w in peers for s in w.steps[-steps:]] if steps else []
    if not times:
        return Cost(0.0, 0.0, 0.0)
    step_ns = median(times)
    named = [own[r] for r in ranks if r in own]
    others = [t for r, t in own.items() if r not in ranks]
    if not named or not others or step_ns <= 0:
        return Cost(1e9 / step_ns if step_ns > 0 else 0.0, 0.0, 0.0)
    lost = [max(t[s] for t in named) - max(t[s] for t in others) for s in range(steps)]
    saved_ns = min(max(0.0, median(lost)), 0.99 * step_ns)
    now, then = 1e9 / step_ns, 1e9 / (step_ns - saved_ns)
    return Cost(now, then - now, (then - now) / then)


def worth_it(cost: Cost, for_s: float, action_s: float) -> bool:
    """Whether what has been lost so far exceeds what an action would cost (a rent-or-buy rule: acting then
    never costs more than twice of what the best choice in hindsight would have)."""
    return cost.share * for_s > action_s
