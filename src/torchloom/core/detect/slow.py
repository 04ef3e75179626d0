"""Slowness: whether the job has become slower (trigger), and which ranks others wait for (localise).

The trigger is a clipped cumulative sum over the logarithm of the job's step times, so that one long step (a
checkpoint, an evaluation) adds little and a lasting slowdown adds up. Localising needs no trigger and no
common clock: a rank's own time is its step without its waits, and the late rank has the most of it among the
ranks of its role. attribute.py decides whether slowness has a local cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import exp, log
from operator import truediv

from msgspec import Struct
from msgspec.structs import replace

from torchloom.core.detect import wide
from torchloom.core.detect.board import DEBUGGED, HALTED, THROTTLED
from torchloom.core.detect.bursts import is_stopped_often
from torchloom.core.detect.own_times import MAX_STEPS, SAMPLED, Peers, own_times, typical_step_ns
from torchloom.core.detect.robust import median, spread
from torchloom.core.detect.wide import Table
from torchloom.core.detect.window import RankWindow

MIN_STEPS = 5
LOOKS = ((8, 0.15), (MAX_STEPS, 0.07))
"""Steps localising looks at, and the least excess it then names: few steps are quick and see only what is
plain, because a rank's noise lasts for some steps; many see through it."""
RECENT = 48
"""Steps since the slowdown began whose median is compared with the usual."""
SETTLED = 20
"""Steps of slowness after which "all ranks alike" may be reported: until then one may still stand out."""


_ROUNDS = 4
_FEW = 16
"""Ranks of a role up to which the late ones are taken out one by one."""
_SET_STEPS = 16
_SET_OFTEN = 0.8
"""A set of slow ranks must be apart from the others in this share of at least so many steps."""


class SlowLimits(Struct, frozen=True, kw_only=True):
    """When slowness is worth reporting."""

    baseline_steps: int = 200
    warm_steps: int = 20
    drift: float = 0.05
    drift_sigmas: float = 0.5
    alarm: float = 0.30
    alarm_sigmas: float = 8.0
    excess: float = 0.07
    """A slowdown below this share is not reported."""
    shift_sigmas: float = 5.0
    score: float = 6.0
    often: float = 0.6
    """A rank must be late in this share of the steps."""
    matters: float = 0.03
    """What a rank takes more than its peers must be at least this share of the step."""
    throttled: float = 0.05
    """A quota that takes this share of a step from one rank is exact evidence. A difference in
    times of `matters` suffices then: where all wait for a core, healthy ranks differ a lot."""
    forget_steps: int = 200
    """After so many steps a slower pace counts as the usual one …"""
    forget_s: float = 1800.0
    """… but while it is reported, only after this long as well: a fault must not become usual, yet a false
    report must not keep the baseline from learning forever."""

    def is_usual(self, untold: int, lasting: int, lasting_s: float) -> bool:
        """Whether something has been slower for so long that it counts as usual: so many steps in a row
        without being reported, or so many and so long in any case."""
        return untold > self.forget_steps or (lasting_s > self.forget_s and lasting > self.forget_steps)

    def may_be_meant(self, began_step: int, changed_step: int | None) -> bool:
        """Whether what began at this step follows a change of settings, or was followed by one."""
        return changed_step is not None and began_step <= changed_step + self.forget_steps


class Trigger(Struct, frozen=True):
    """State of the cumulative sum: plain data, kept by the caller between calls."""

    healthy: tuple[float, ...] = ()
    total: float = 0.0
    above: int = 0
    """Steps in a row with a positive sum."""
    excesses: tuple[float, ...] = ()
    last_step: int = 0
    alarmed: bool = False
    baseline_s: float = 0.0
    now_s: float = 0.0
    unfound: int = 0
    """Steps in a row with a positive sum and nothing to report."""
    slow_s: float = 0.0
    """How long all steps in a row with a positive sum took."""


def watch(trigger: Trigger, step: int, step_s: float, limits: SlowLimits, found: bool = False) -> Trigger:
    """Take one more step of the job (its time is the median over ranks) into account. `found` says that the
    job was found to be slower at the last look."""
    if step <= trigger.last_step or step_s <= 0:
        return trigger
    y = log(step_s)
    healthy = trigger.healthy
    if len(healthy) < limits.warm_steps:
        return replace(trigger, healthy=(*healthy, y), last_step=step)
    usual = median(healthy)
    # Garbage collections lengthen some steps a lot: a spread that counts only the calm half would let them
    # add up, so the upper tail counts as well.
    tail = sorted(healthy)[int(0.9 * len(healthy))] - usual
    # Spread and usual time are themselves uncertain while few steps are known, and a baseline that came out
    # too narrow would freeze with the first alarm.
    sigma = max(spread(healthy, usual), tail / 1.28) * (1 + 10 / len(healthy))
    doubt = limits.drift_sigmas + 2.5 / len(healthy) ** 0.5
    gain = min(y - usual, max(3 * sigma, 0.15))
    # In a job whose steps vary by themselves a fixed drift would let chance add up.
    total = max(0.0, trigger.total + gain - max(limits.drift, doubt * sigma))
    # No higher than a few alarms: what lasted for long must not take as long to be over.
    total = min(total, 4 * max(limits.alarm, limits.alarm_sigmas * sigma))
    unfound, slow_s = 0 if found else trigger.unfound + 1, trigger.slow_s + step_s
    if total == 0.0 or limits.is_usual(unfound, trigger.above, slow_s):
        kept = healthy if total == 0.0 else trigger.excesses
        return Trigger((*kept, y)[-limits.baseline_steps :], last_step=step)
    # The baseline is frozen while the sum is positive, or it would learn the slowness.
    excesses = (*trigger.excesses, y)[-limits.baseline_steps :]
    recent = excesses[-RECENT:]
    now = median(recent)
    # Two medians of steps that vary by σ differ by chance: the shift must be far beyond that.
    chance = limits.shift_sigmas * 1.25 * sigma * (1 / len(recent) + 1 / len(healthy)) ** 0.5
    alarmed = (
        total > max(limits.alarm, limits.alarm_sigmas * sigma)
        and trigger.above + 1 >= 3
        and now - usual > max(chance, log(1 + limits.excess))
        # A slower job has slower fast steps as well; a run of long batches or garbage collections has not.
        and _fast(recent) - _fast(healthy) > log(1 + limits.excess) / 2
    )
    return Trigger(
        healthy,
        total,
        trigger.above + 1,
        excesses,
        step,
        alarmed,
        exp(usual),
        exp(now),
        unfound,
        slow_s,
    )


def _fast(values: Sequence[float]) -> float:
    """The lower quartile."""
    return sorted(values)[len(values) // 4]


class Late(Struct, frozen=True, gc=False):
    """A rank that takes more time for itself than its peers do."""

    rank: int
    ratio: float
    """Own time against the peers' median."""
    score: float | None
    """Robust standard deviations above the peers; None where other evidence than times shows it."""
    excess_ns: float
    """A step, in the median."""
    share: float
    """In which part of the steps."""
    steps: int


def localise(windows: Sequence[RankWindow], limits: SlowLimits) -> list[Late]:
    """Late ranks among ranks of one role, the latest first. Those found are taken out together and the rest
    judged again, so that others cannot hide behind them; a few rounds, so the cost is linear in the ranks."""
    for newest, least in LOOKS:
        found = _localise(windows, replace(limits, excess=max(limits.excess, least)), newest)
        if found:
            return found
    return []


def lasting_late(windows: Sequence[RankWindow], limits: SlowLimits) -> list[Late]:
    """Late ranks that are plainly late over all known steps, of which there are enough."""
    least = max(limits.excess, LOOKS[0][1])
    late = _localise(windows, replace(limits, excess=least), MAX_STEPS)
    return [one for one in late if one.steps >= _SET_STEPS]


def held_back(windows: Sequence[RankWindow], limits: SlowLimits) -> list[Late]:
    """Late ranks that a CPU quota stops, and their peers not, or less; or that somebody traces, or stops and
    continues. What holds them up is known, so they need not stand out as far as others."""
    peers = Peers.of(windows)
    board = peers.board
    halted = (row for row in board.marked(HALTED) if is_stopped_often(board[row]))
    known = {board.ranks[row] for row in (*board.marked(DEBUGGED), *halted)}
    stopped = _throttled(peers, limits) | known.intersection(peers.ranks)
    if not stopped or len(stopped) == len(windows) or peers.shared < MIN_STEPS:
        return []
    table = peers.table
    if table is not None:
        others = table.own[~table.rows(stopped)]
        own = dict(zip(table.ranks, table.own.tolist(), strict=True))
        middles = wide.middles(others).tolist()
    else:
        own = own_times(windows)
        free = [times for rank, times in own.items() if rank not in stopped]
        middles = [median(column) for column in zip(*free, strict=True)]
    late = [_behind(peers.window(r), own[r], middles, limits) for r in peers.ranks if r in stopped]
    return [one for one in late if one is not None]


def _throttled(peers: Peers, limits: SlowLimits) -> set[int]:
    if not peers.board.marked(THROTTLED):
        return set()
    quotas = dict(zip(peers.ranks, peers.of_rows(peers.board.throttled_ns()), strict=True))
    stopped: set[int] = set()
    if not any(quotas.values()) or len(quotas) < 2:
        return stopped
    step_ns = typical_step_ns(peers)
    middle = median(list(quotas.values()))
    for rank, taken in quotas.items():
        # Of many, one more or less does not move the middle.
        few = len(quotas) <= _FEW
        others = median([t for r, t in quotas.items() if r != rank]) if few else middle
        if taken - others > limits.throttled * step_ns:
            stopped.add(rank)
    return stopped


def _behind(
    window: RankWindow, mine: Sequence[int], middles: Sequence[float], limits: SlowLimits
) -> Late | None:
    """One rank against the middle of others, for whom there is other evidence than times."""
    above = _heights(mine, middles)
    excess = median([t - m for t, m in zip(mine, middles, strict=True)])
    share = sum(v > 0 for v in above) / len(above)
    step_ns = median([s.step_ns for s in window.steps[-len(mine) :]])
    if excess < limits.matters * step_ns or share < 0.5:
        return None
    return Late(window.rank, exp(median(above)), None, excess, share, len(mine))


def _localise(windows: Sequence[RankWindow], limits: SlowLimits, newest: int) -> list[Late]:
    table = Peers.of(windows).table
    if table is not None:
        return _localise_many(windows, table, limits, newest)
    own = own_times(windows, newest)
    steps = len(next(iter(own.values()), []))
    if steps < MIN_STEPS or len(own) < 2:
        return []
    step_ns = typical_step_ns(windows, steps)
    rest = dict(own)
    found: list[Late] = []
    most = max(1, (len(own) - 1) // 2)
    for _ in range(max(_ROUNDS, min(len(own), _FEW))):
        late = _latest(rest, steps, limits)[: most - len(found)] if len(rest) > 1 else []
        if not late:
            break
        found += [one for one in late if one.excess_ns >= limits.matters * step_ns]
        out = {one.rank for one in late}
        rest = {rank: times for rank, times in rest.items() if rank not in out}
    return found


def _localise_many(
    windows: Sequence[RankWindow], table: Table, limits: SlowLimits, newest: int
) -> list[Late]:
    own, ranks = table.own[:, -newest:], table.ranks
    steps = int(own.shape[1])
    if steps < MIN_STEPS:
        return []
    step_ns = typical_step_ns(windows, steps)
    found: list[Late] = []
    most = max(1, (len(ranks) - 1) // 2)
    for _ in range(_FEW):
        rows = wide.latest(own, SAMPLED, limits.score, limits.excess, limits.often)[: most - len(found)]
        if not rows:
            break
        found += [
            Late(ranks[one.place], one.ratio, one.score, one.excess_ns, one.share, steps)
            for one in rows
            if one.excess_ns >= limits.matters * step_ns
        ]
        out = {one.place for one in rows}
        left = [place for place in range(len(ranks)) if place not in out]
        own, ranks = own[left], [ranks[place] for place in left]
    return found


def _latest(own: Mapping[int, list[int]], steps: int, limits: SlowLimits) -> list[Late]:
    """Those that are clearly late, the latest first. Among a few only the latest: it moves the middle."""
    columns = zip(*own.values(), strict=True)
    if len(own) == 2:
        # With one peer the median would lie between the two: the faster one is the measure.
        middles = [float(min(column)) for column in columns]
    else:
        middles = [median(column) for column in columns]
    typical = {rank: _height(times, middles) for rank, times in own.items()}
    order = sorted(typical, key=lambda r: (typical[r], sum(own[r])), reverse=True)
    if len(order) <= _FEW:
        order = order[:1]
    # A median over n steps is uncertain by about 1.25 σ / √n, however much the ranks agree with each other.
    some = list(own.values())[:: -(-len(own) // SAMPLED)]
    noise = 1.25 * median([spread(_heights(times, middles)) for times in some]) / steps**0.5
    found: list[Late] = []
    others = sorted(typical.values())
    for rank in order:
        height = typical[rank]
        if len(order) == 1:
            others = [t for r, t in typical.items() if r != rank]
        if not found:  # of many, one more or less does not move the middle
            centre = median(others)
            sigma = max(spread(others, centre), noise, 0.008)
        score, ratio = (height - centre) / sigma, exp(height - centre)
        if score <= limits.score or ratio <= 1 + limits.excess:
            break
        over = log(1 + limits.excess)
        share = sum(v - centre > over for v in _heights(own[rank], middles)) / steps
        if share < limits.often:
            continue
        excess = median([t - m * exp(centre) for t, m in zip(own[rank], middles, strict=True)])
        found.append(Late(rank, ratio, score, excess, share, steps))
    return found


def _heights(times: Sequence[int], middles: Sequence[float]) -> list[float]:
    """How far above the others in each step, as logarithms."""
    return [log(t / m) for t, m in zip(times, middles, strict=True)]


def _height(times: Sequence[int], middles: Sequence[float]) -> float:
    """Their median, with two logarithms in place of one a step."""
    ratios = sorted(map(truediv, times, middles))
    half = len(ratios) // 2
    return log(ratios[half]) if len(ratios) % 2 else (log(ratios[half]) + log(ratios[half - 1])) / 2


def lasting_set(windows: Sequence[RankWindow], limits: SlowLimits) -> list[Late]:
    """Ranks that are slow for good where they are too many to stand out from the middle: their own times and
    those of the others form two bunches with a clear gap, in nearly all steps. The slow ones, else nobody."""
    peers = Peers.of(windows)
    steps = peers.shared
    if steps < _SET_STEPS or len(peers) < 4:
        return []
    typical = peers.typical
    if peers.table is not None:
        found = wide.lasting_set(peers.table, log(1 + LOOKS[0][1]), limits.excess, _SET_OFTEN)
        if found is None:
            return []
        late = [peers.table.ranks[place] for place in found.rows]
        return [
            Late(r, typical[r] / found.middle, None, typical[r] - found.middle, found.apart, steps)
            for r in late
        ]
    own = own_times(windows)
    order = sorted(typical, key=lambda r: (typical[r], r))
    gaps = [log(typical[b] / typical[a]) for a, b in pairwise(order)]
    widest = max(range(len(gaps)), key=lambda n: gaps[n])
    fast, slow = order[: widest + 1], order[widest + 1 :]
    inside = max(
        log(typical[fast[-1]] / typical[fast[0]]), log(typical[slow[-1]] / typical[slow[0]]) / 2, 0.02
    )
    if len(fast) < 2 or len(slow) < 2 or gaps[widest] < max(log(1 + LOOKS[0][1]), 2 * inside):
        return []
    slowest = [max(own[r][s] for r in fast) for s in range(steps)]
    apart = [
        median([own[r][s] for r in slow]) > (1 + limits.excess) * median([own[r][s] for r in fast])
        and sum(own[r][s] > slowest[s] for r in slow) > len(slow) / 2
        for s in range(steps)
    ]
    if sum(apart) < _SET_OFTEN * steps:
        return []
    middle = median([typical[r] for r in fast])
    return [Late(r, typical[r] / middle, None, typical[r] - middle, sum(apart) / steps, steps) for r in slow]
