"""Ranks that wait in a circle because one of them left out a send or a collective: which one. Judges nobody
else; a rank that is behind for good in a job that trains is found in counts.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from msgspec import Struct

from torchloom.core.detect.graph import Graph
from torchloom.core.detect.window import PAIRWISE, RankWindow
from torchloom.core.detect.words import of_group

STEADY = 8
"""Steps in a row with the same number of collectives after which it is known how many are due."""


class LeftOut(Struct, frozen=True):
    rank: int
    what: str
    """As the end of a sentence: `a send to rank 9`."""


def sends(circle: Iterable[int], graph: Graph, by_rank: Mapping[int, RankWindow]) -> list[LeftOut]:
    """Of ranks that wait to receive from each other: the one that has sent less than usual by then, and to
    which rank. None if that is not clear."""
    found = []
    for rank in sorted(circle):
        wait, window = graph.waits[graph.at[rank]], by_rank[rank]
        if wait.collective.op != "recv" or not wait.absent:
            continue
        at = next(
            (c for c in window.counts if c.group == wait.collective.group and c.peer == wait.collective.peer),
            None,
        )
        if at is None or None in (at.sent, at.received, at.usual):
            continue
        if (at.sent or 0) - (at.received or 0) < (at.usual or 0):
            found.append(LeftOut(rank, f"a send to rank {wait.absent[0]}"))
    return found if len(found) == 1 else []


def collectives(circle: Iterable[int], graph: Graph, by_rank: Mapping[int, RankWindow]) -> list[LeftOut]:
    """Ranks that others of the circle wait for in a collective, and that made fewer collectives of its group
    in their last step than in each of the steps before."""
    missed: dict[int, str] = {}
    for key in {graph.at[rank] for rank in circle}:
        wait = graph.waits[key]
        if wait.collective.op not in PAIRWISE:
            missed |= dict.fromkeys(wait.absent, wait.collective.group)
    found = []
    for rank, group in sorted(missed.items()):
        number = _fewer(by_rank[rank], group)
        if number:
            found.append(LeftOut(rank, f"{number} collective{'s' * (number > 1)}{of_group(group)}"))
    return found


def _fewer(window: RankWindow, group: str) -> int:
    """How many collectives of this group its last completed step had less than each of those before."""
    place = next((n for n, g in enumerate(window.groups) if g.name == group), -1)
    made: list[int] = []
    for one in window.steps[-STEADY - 2 :]:
        # A step without any is not listed: what was made by its end is what was made before it.
        made.append(next((m for where, m in one.made if where == place), made[-1] if made else 0))
    each = [b - a for a, b in pairwise(made)]
    if len(each) < STEADY + 1 or len(set(each[:-1])) != 1:
        return 0
    return max(0, each[0] - each[-1])
