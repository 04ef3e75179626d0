"""The rules of slowness over arrays: for jobs of hundreds of ranks and more. Chooses nothing by itself.

Each function here gives what the plain rule of slow.py gives, to the last bit: the plain rules are the
definition and judge all smaller jobs; a test compares the two. NumPy comes with nearly every torch; where it
is absent, the plain rules judge large jobs too and take several times as long. To stay exact, logarithms that
are reported or compared come from `math`: those of NumPy may differ in the last bit.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from functools import cache, cached_property
from math import exp, log
from typing import TYPE_CHECKING, Any

from torchloom.core.detect.board import WindowBoard
from torchloom.core.detect.robust import GAUSSIAN, median, spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

ARRAYS_FROM = 256
"""Ranks from which arrays pay: importing NumPy costs as much CPU time as a few looks at fewer."""
_UNSURE = 1e-9
"""Far more than two implementations of a logarithm differ by."""


@cache
def numpy() -> Any:
    """NumPy, or None. Imported when the first large job is judged: most weavers never see one."""
    try:
        import numpy as np
    except ImportError:
        return None
    return np


def worth_it(ranks: int) -> bool:
    return ranks >= ARRAYS_FROM and numpy() is not None


class Table:
    """Own times of ranks in the steps that all of them have completed: one row a rank."""

    def __init__(self, ranks: Sequence[int], own: NDArray[Any]) -> None:
        self.ranks, self.own = ranks, own

    @cached_property
    def place(self) -> dict[int, int]:
        """By rank, its row."""
        return {rank: place for place, rank in enumerate(self.ranks)}

    @cached_property
    def typical(self) -> NDArray[Any]:
        """The median of each row."""
        return middles(self.own, axis=1)

    @property
    def steps(self) -> int:
        return int(self.own.shape[1])

    def rows(self, ranks: Collection[int]) -> NDArray[Any]:
        """Which rows are those of these ranks."""
        mask = numpy().zeros(len(self.ranks), dtype=bool)
        mask[[self.place[r] for r in ranks if r in self.place]] = True
        return mask


def table(ranks: Sequence[int], board: WindowBoard, rows: Sequence[int], steps: Sequence[int]) -> Table:
    """Of these rows of a board, in steps that all of them have completed."""
    np = numpy()
    own = _columns(board.own_ns, rows, len(board), steps)
    if board.gaps:
        wanted = set(steps)
        for place, row in enumerate(rows):
            if row in board.gaps:
                own[place] = [max(1, s.own_ns) for s in board[row].steps if s.step in wanted]
    return Table(ranks, np.maximum(own, 1))


def data_waits(board: WindowBoard, rows: Sequence[int], steps: Sequence[int]) -> list[float]:
    """How long these rows waited for data in a step, in the median over these steps."""
    found: list[float] = middles(_columns(board.data_wait_ns, rows, len(board), steps), axis=1).tolist()
    return found


def _columns(
    column: Callable[[int], Sequence[int]], rows: Sequence[int], count: int, steps: Sequence[int]
) -> NDArray[Any]:
    np = numpy()
    found = np.empty((len(rows), len(steps)), np.int64)
    some = None if len(rows) == count else np.fromiter(rows, np.intp, len(rows))
    for place, step in enumerate(steps):
        whole = column(step)
        read = np.frombuffer(whole, np.int64) if isinstance(whole, array) else np.asarray(whole, np.int64)
        found[:, place] = read if some is None else read[some]
    return found


def middles(values: NDArray[Any], axis: int = 0) -> NDArray[Any]:
    """Medians along an axis, as `robust.median` of each."""
    lower, upper = _halves(values, axis)
    return upper if values.shape[axis] % 2 else (lower + upper) / 2


def _halves(values: NDArray[Any], axis: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The two values in the middle along an axis; the upper one is the median of an odd number."""
    np = numpy()
    half = values.shape[axis] // 2
    if axis == 1:  # many short rows: NumPy sorts them several times as fast as it divides them
        some = np.sort(values, axis=1)
        return some[:, half - 1], some[:, half]
    some = np.partition(values, (max(0, half - 1), half), axis=0)
    return some[half - 1], some[half]


def heights(own: NDArray[Any], usual: NDArray[Any]) -> list[float]:
    """How far above the others each rank is in the median over the steps, as a logarithm."""
    below, above = _halves(own / usual, axis=1)
    upper = map(log, above.tolist())
    if own.shape[1] % 2:
        return list(upper)
    return [(a + b) / 2 for a, b in zip(upper, map(log, below.tolist()), strict=True)]


def noise(own: NDArray[Any], usual: Sequence[float], every: int) -> float:
    """How much a rank differs from step to step, in the median over some of the ranks."""
    some = own[::every].tolist()
    return median([spread([log(t / m) for t, m in zip(times, usual, strict=True)]) for times in some])


def spread_of(values: NDArray[Any], centre: float) -> float:
    return float(GAUSSIAN * middles(abs(values - centre)))


class Row:
    """A late rank as arrays see it: its row, height, score, and what the plain rule also works out."""

    __slots__ = ("excess_ns", "place", "ratio", "score", "share")

    def __init__(self, place: int, ratio: float, score: float, excess_ns: float, share: float) -> None:
        self.place, self.ratio, self.score = place, ratio, score
        self.excess_ns, self.share = excess_ns, share


def latest(own: NDArray[Any], sampled: int, score: float, excess: float, often: float) -> list[Row]:
    """As `slow._latest` of more than a few ranks: rows of `own` that are clearly late, the latest first."""
    np = numpy()
    steps = own.shape[1]
    usual = middles(own).astype(np.float64)
    above = heights(own, usual)
    typical = np.array(above)
    doubt = 1.25 * noise(own, usual.tolist(), -(-len(above) // sampled)) / steps**0.5
    centre = float(middles(typical))
    sigma = max(spread_of(typical, centre), doubt, 0.008)
    scores = (typical - centre) / sigma
    late = [n for n in np.nonzero(scores > score)[0].tolist() if exp(above[n] - centre) > 1 + excess]
    if not late:
        return []
    totals = own[late].sum(axis=1).tolist()
    by = dict(zip(late, totals, strict=True))
    order = sorted(late, key=lambda n: (above[n], by[n]), reverse=True)
    shares = _shares(own[order], usual, centre, log(1 + excess))
    more = middles(own[order] - usual * exp(centre), axis=1).tolist()
    return [
        Row(n, exp(above[n] - centre), float(scores[n]), excess_ns, share)
        for n, share, excess_ns in zip(order, shares, more, strict=True)
        if share >= often
    ]


def _shares(own: NDArray[Any], usual: NDArray[Any], centre: float, over: float) -> list[float]:
    """In which part of the steps each row is above the centre by more than `over`, as logarithms."""
    np = numpy()
    ratios = own / usual
    beyond = np.log(ratios) - centre - over
    sure = beyond > 0
    for row, column in zip(*np.nonzero(abs(beyond) < _UNSURE), strict=True):
        sure[row, column] = log(float(ratios[row, column])) - centre > over
    steps = ratios.shape[1]
    return [count / steps for count in sure.sum(axis=1).tolist()]


class Set:
    """Slow ranks: their rows, the median of the fast ones, and in which part of the steps they are apart."""

    __slots__ = ("apart", "middle", "rows")

    def __init__(self, rows: Sequence[int], middle: float, apart: float) -> None:
        self.rows, self.middle, self.apart = rows, middle, apart


def lasting_set(made: Table, least_gap: float, excess: float, often: float) -> Set | None:
    """As `slow.lasting_set`: the rows that are apart from all others in nearly all steps."""
    np = numpy()
    own, steps = made.own, made.steps
    typical = made.typical
    order = np.lexsort((np.array(made.ranks), typical))
    ordered = typical[order]
    gaps = list(map(log, (ordered[1:] / ordered[:-1]).tolist()))
    widest = max(range(len(gaps)), key=gaps.__getitem__)
    fast, slow = order[: widest + 1], order[widest + 1 :]
    first, last_fast = float(ordered[0]), float(ordered[widest])
    first_slow, last = float(ordered[widest + 1]), float(ordered[-1])
    inside = max(log(last_fast / first), log(last / first_slow) / 2, 0.02)
    if len(fast) < 2 or len(slow) < 2 or gaps[widest] < max(least_gap, 2 * inside):
        return None
    slowest = own[fast].max(axis=0)
    apart = (middles(own[slow]) > (1 + excess) * middles(own[fast])) & (
        (own[slow] > slowest).sum(axis=0) > len(slow) / 2
    )
    total = int(apart.sum())
    if total < often * steps:
        return None
    return Set(slow.tolist(), median(ordered[: widest + 1].tolist()), total / steps)


def lost_ns(made: Table, named: NDArray[Any], newest: int) -> float | None:
    """What the named rows take beyond the slowest of the others, in the median over the steps."""
    own = made.own[:, -newest:]
    if not named.any() or named.all() or not own.shape[1]:
        return None
    return float(middles(own[named].max(axis=0) - own[~named].max(axis=0)))


def smallest(made: Table, place: int) -> list[int]:
    """For each step the own time at this place in their order."""
    found: list[int] = numpy().partition(made.own, place, axis=0)[place].tolist()
    return found


def spreads(own: NDArray[Any], centres: Sequence[float]) -> list[float]:
    """For each column as `robust.spread` around its centre."""
    return [spread_of(column, centre) for column, centre in zip(own.T, centres, strict=True)]
