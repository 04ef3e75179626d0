"""A rank that left out a collective which the others made: seen in how many each has made by the same step.

Such a job trains on, and from then on what the rank sends meets another step of its peers. Nothing is
stuck and no operation differs, so nothing else sees it soon. Only groups are judged whose ranks made the
same number of collectives by the end of each of many steps before, and only a difference that stays: ranks
that make them at different times (threads, pipelines, uneven inputs) never come to that. No rank is
blamed for having made more: a rank that missed counting one of its steps looks like that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from torchloom.core.detect import words
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
    news = _News(known)
    for group, (size, members) in _members(windows).items():
        if len(members) != size or size < 2:
            continue
        ranks = tuple(members)
        tally = known.get(group)
        if tally is None or tally.ranks != ranks:
            ranks = tuple(sorted(ranks))
            if tally is None or tally.ranks != ranks:
                tally = Tally(ranks, 0, 0)
        alike = news.alike(members, tally.step)
        if alike is not None:
            for step, number in alike:
                tally = _take_equal(tally, step, number)
        else:
            for step, made in _fresh(members, tally.step):
                tally = _take(tally, step, made)
        tallies[group] = tally
        if tally.behind and tally.odd >= STAYS:
            found.append(_say(group, tally, windows))
    return tallies, found


_Members = dict[int, tuple[int, RankWindow]]
_ONE = attrgetter("step", "made")
_Made = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]


def _members(windows: Sequence[RankWindow]) -> dict[str, tuple[int, _Members]]:
    """Group → its size, and its ranks with the place it has in their tables."""
    found: dict[str, tuple[int, _Members]] = {}
    for window in windows:
        for place, group in enumerate(window.groups):
            name = group.name
            if name not in found:
                found[name] = group.size, {}
            found[name][1][window.rank] = place, window
    return found


class _News:
    """The usual case: all ranks of a group have completed the same steps and made the same number of
    collectives in each. Then it suffices to compare what is new of each rank as a whole."""

    def __init__(self, known: Tallies) -> None:
        # Most groups were looked at up to here, so what is newer is taken from each window once.
        self._since = max((t.step for t in known.values()), default=0)
        self._made: dict[int, _Made] = {}

    def alike(self, members: _Members, last: int) -> list[tuple[int, int]] | None:
        """Newer steps, and how many each rank had made by their ends; None where ranks differ in anything."""
        place, window = next(iter(members.values()))
        if last != self._since:
            # It is not used in every step, or its ranks were not all there.
            told = any(at == place for s in window.steps if s.step > last for at, _ in s.made)
            return None if told else []
        first = self._of(window)
        for at, other in members.values():
            if at != place or self._of(other) != first:
                return None
        return [(step, number) for step, made in first for at, number in made if at == place]

    def _of(self, window: RankWindow) -> _Made:
        made = self._made.get(window.rank)
        if made is None:
            steps, since = window.steps, self._since
            number = steps[-1].step - since if steps else 0
            if number <= 0:
                made = ()
            elif number <= len(steps) and steps[-number].step == since + 1:
                made = tuple(map(_ONE, steps[-number:]))  # without a gap, as nearly always
            else:
                made = tuple(_ONE(one) for one in steps if one.step > since)
            self._made[window.rank] = made
        return made


def _fresh(members: Mapping[int, tuple[int, RankWindow]], last: int) -> list[tuple[int, dict[int, int]]]:
    """Newer steps, in order, in which all ranks used the group: how many each had made by its end."""
    by_step: dict[int, dict[int, int]] = {}
    for rank, (place, window) in members.items():
        for one in reversed(window.steps):
            if one.step <= last:
                break
            for where, made in one.made:
                if where == place:
                    by_step.setdefault(one.step, {})[rank] = made
    return [(step, made) for step, made in sorted(by_step.items()) if len(made) == len(members)]


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
        sentence=f"{words.whom(late)} left out {number} of group {group} after step {step} that "
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
