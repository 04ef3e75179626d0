"""Replicas of a torchft job that reach the lighthouse, but not each other: which of them are left out. Pure.

A quorum of such replicas fails every collective, again and again. When a step has failed although nobody
ended, or takes far longer than usual, their nodes try to connect to each other
(agent/lighthouse/link_checks.py). If some cannot, the smaller side is left out of the quorum, and taken back
when all its links to the others work again. Nothing is ended. Who has the newest weights stays, so that there
is one history.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from statistics import median

from msgspec import Struct

from torchloom.model.quorum import Link

MOST_NODES = 128
"""Of a larger job the links are not checked: every node tries every other one."""
STEADY_S = 2.0
"""Its links must work for so long before a replica is taken back …"""
LONGEST_S = 300.0
"""… and for twice as long after every time, up to this, if they break again soon."""
SOON_S = 600.0


STALLED_S = 10.0
"""Less than this between two quorums is never too long, …"""
STALLED = 5.0
"""… and neither is less than this many times the usual time."""


MENDED = "all its links to the other replicas work again"


class FailedMember(Struct, frozen=True):
    """A member of the quorum that failed."""

    door: str
    node: str
    step: int
    """That it had made when it joined that quorum."""


def link(one: str, other: str) -> Link:
    return (one, other) if one <= other else (other, one)


def links_of(node: str, others: Iterable[str]) -> frozenset[Link]:
    return frozenset(link(node, other) for other in others if other != node)


def apart(
    standings: Sequence[FailedMember], broken: Collection[Link], home: str
) -> dict[str, tuple[Link, ...]]:
    """Who must be left out so that all others reach each other, and the links that cannot be used. `home`:
    the lighthouse's own node. A replica that only follows the others (it heals) leaves before one with the
    newest weights; then the one with the most broken links; of equals, the one of the later door."""
    newest = max((one.step for one in standings), default=0)
    stay, left = list(standings), list[FailedMember]()

    def lost(one: FailedMember) -> frozenset[Link]:
        return links_of(one.node, (other.node for other in stay)) & frozenset(broken)

    def count(one: FailedMember) -> int:
        return sum(link(one.node, other.node) in broken for other in stay)

    while cut := [one for one in stay if lost(one)]:
        worst = max(cut, key=lambda one: (one.step < newest, count(one), one.node != home, one.door))
        stay.remove(worst)
        left.append(worst)
    for one in reversed(left):  # what it could not reach may have been left out after it
        if not lost(one):
            stay.append(one)
    return {one.door: tuple(sorted(lost(one))) for one in left if one not in stay}


def stalled_after_s(usual_s: Sequence[float]) -> float:
    """When a quorum is overdue, by the times that passed between the last ones."""
    return max(STALLED_S, STALLED * median(usual_s)) if usual_s else STALLED_S


def steady_s(times: int) -> float:
    """For how long its links must work, if it was cut off so often before."""
    return float(min(LONGEST_S, STEADY_S * 2 ** min(times, 12)))
