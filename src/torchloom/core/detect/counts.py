"""A rank that left out a collective which the others made: seen in how many each has made by the same step.

Such a job trains on, and from then on what the rank sends meets another step of its peers. Nothing is
stuck and no operation differs, so nothing else sees it soon. Only groups are judged whose ranks made the
same number of collectives by the end of each of many steps before, and only a difference that stays: ranks
that make them at different times (threads, pipelines, uneven inputs) never come to that. No rank is
blamed for having made more: a rank that missed counting one of its steps looks like that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from torchloom.core.detect import words
from torchloom.core.detect.board import GroupRows, WindowBoard
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Evidence, Finding

EQUAL = 24
"""Steps in which all ranks must have made the same number before …"""
STAYS = 8
"""… and in which the difference must be the same since."""
STEADY = 8
"""Steps with the same number of collectives after which it is known how many are due."""


class Tally(Struct, frozen=True, array_like=True):
    """One group."""

    ranks: tuple[int, ...]
    step: int
    """The newest that was looked at."""
    made: int
    """By its end, when all were equal last."""
    equal: int = 0
    """Steps in which all were equal."""
    each: int = 0
    """Made in each of the last …"""
    steady: int = 0
    """… so many of them."""
    before: int = 0
    """The last step in which they were equal; 0 while they are."""
    behind: dict[int, int] = {}
    """By rank, how many it has made fewer since then."""
    odd: int = 0
    """Steps in which that was so."""


Tallies = Mapping[str, Tally]


def count(windows: Sequence[RankWindow], known: Tallies) -> tuple[dict[str, Tally], list[Finding]]:
    """Take in what is new; who is behind now."""
    tallies: dict[str, Tally] = {}
    found: list[Finding] = []
    board = WindowBoard.of(windows)
    news = _News(board)
    for name, group in board.groups.items():
        if len(group.ranks) != group.size or group.size < 2:
            continue
        tally = known.get(name)
        if tally is None or tally.ranks != group.ranks:
            ranks = tuple(sorted(group.ranks))
            if tally is None or tally.ranks != ranks:
                tally = Tally(ranks, 0, 0)
        for step, made in news.of(group, tally.step):
            tally = _take_equal(tally, step, made) if isinstance(made, int) else _take(tally, step, made)
        tallies[name] = tally
        if tally.behind and tally.odd >= STAYS:
            found.append(_say(name, tally, windows))
    return tallies, found


_Made = tuple[tuple[int, int], ...]


class _News:
    """What each group's ranks have made by the ends of newer steps. In the usual case all ranks of the job
    made the same, and it suffices to compare them once for all groups."""

    def __init__(self, board: WindowBoard) -> None:
        self._board = board
        self._alike: dict[int, _Made | None] = {}
        self._first, self._last = board.span()
        self._odd: dict[int, dict[int, _Made]] = {
            row: {one.step: one.made for one in board[row].steps} for row in board.gaps
        }

    def of(self, group: GroupRows, after: int) -> Iterator[tuple[int, int | dict[int, int]]]:
        """Newer steps, in order, in which all ranks used the group: the number that each had made by its end,
        or by rank where they differ."""
        place = group.place
        for step in self._steps(group, after):
            if place is not None and (same := self._same(step)) is not None:
                number = _at(same, place)
                if number is not None:
                    yield step, number
                continue
            made = self._board.made_in(group, step)
            by_rank: dict[int, int] = {}
            for rank, row, at, told in zip(group.ranks, group.rows, group.places, made, strict=True):
                number = _at(self._odd[row].get(step, ()), at) if row in self._odd else told
                if number is None:
                    break
                by_rank[rank] = number
            else:
                yield step, by_rank

    def _steps(self, group: GroupRows, after: int) -> Sequence[int]:
        board = self._board
        if after >= self._last and len(group.rows) == len(board):
            return ()
        steps = board.common_of(group)
        return steps[bisect_right(steps, after) :]

    def _same(self, step: int) -> _Made | None:
        """What all ranks had made by the end of a step, by place, if it is the same."""
        if step not in self._alike:
            self._alike[step] = None
            if self._first <= step <= self._last and not self._odd:
                self._alike[step] = self._board.same_made(step)
        return self._alike[step]


def _at(made: _Made, place: int) -> int | None:
    for where, number in made:
        if where == place:
            return number
    return None


def _take(tally: Tally, step: int, made: Mapping[int, int]) -> Tally:
    most, least = max(made.values()), min(made.values())
    if most == least:
        return _take_equal(tally, step, most)
    if tally.odd:
        if {r: most - m for r, m in made.items() if m < most} == tally.behind:
            return replace(tally, step=step, odd=tally.odd + 1)
        return Tally(tally.ranks, step, 0)  # it does not stay: they are let be until they are equal for long
    behind = _left_out(tally, step, made) if tally.equal >= EQUAL else {}
    if not behind:
        return Tally(tally.ranks, step, 0)
    return replace(tally, step=step, before=tally.step, behind=behind, odd=1)


def _take_equal(tally: Tally, step: int, made: int) -> Tally:
    """A step by whose end all ranks had made the same number."""
    if tally.odd or not tally.equal:
        return Tally(tally.ranks, step, made, 1)
    each = (made - tally.made) / (step - tally.step)
    steady = tally.steady + 1 if each == tally.each else 0
    return Tally(tally.ranks, step, made, tally.equal + 1, round(each), steady, tally.before, tally.behind)


def _left_out(tally: Tally, step: int, made: Mapping[int, int]) -> dict[int, int]:
    """Who made fewer than were due, if all others made just as many as were due."""
    most = max(made.values())
    behind = {rank: most - number for rank, number in made.items() if number < most}
    due = tally.made + tally.each * (step - tally.step)
    if tally.steady < STEADY:
        return behind if 2 * len(behind) < len(made) else {}
    return behind if most == due else {}


def _say(group: str, tally: Tally, windows: Sequence[RankWindow]) -> Finding:
    late = [w for w in windows if w.rank in tally.behind]
    others = [rank for rank in tally.ranks if rank not in tally.behind]
    fewest = min(tally.behind.values())
    step = tally.before + words.offset_of(windows)
    number = f"{fewest} collective{'s' * (fewest > 1)}"
    return Finding(
        kind="divergence",
        ranks=tuple(sorted(tally.behind)),
        node=words.node_of(late),
        sentence=f"{words.whom(late)} left out {number}{words.of_group(group)} after step {step} that "
        f"{words.ranks_text(others)} made: what it exchanges since then belongs to another step than theirs",
        confidence=0.97,
        certain=True,
        certainty=f"by the end of each of {tally.equal} steps they had made equally many, and since then "
        "they differ by the same number",
        evidence=tuple(
            Evidence(rank, f"{behind} behind the others in {tally.odd} steps in a row")
            for rank, behind in sorted(tally.behind.items())[:16]
        ),
        inputs={"step": tally.before + 1, "behind": fewest},
    )
