"""A replica of a torchft job that the other replicas wait for: each compared by the time it takes for itself.

A replica's own time is a step without its waits for collectives and for the quorum. Replicas that train in
lock-step all take as long as the slowest one, and only own times show which one that is. Judges replicas of
one quorum, all of them or none; what is done about it is for core/policy/leave_out.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from torchloom.core.detect.robust import median
from torchloom.core.detect.words import node_of
from torchloom.model.findings import Finding
from torchloom.model.windows import RankWindow

STEPS = 12
"""Steps in one quorum that a comparison needs."""
COMPARED = 16
"""The newest steps that are compared."""
SLOWER = 1.5
"""Less than this many times the own time of the slowest other replica is nothing to report …"""
LEAST_S = 0.005
"""… and neither is less than this in a step."""
WAITED = 0.75
"""The others' steps must take at least this part of its own time: else they do not wait for it."""


class ReplicaPace(Struct, frozen=True, kw_only=True):
    """One replica over its newest steps in its present quorum."""

    own_s: float
    """In the median; of the slowest rank."""
    step_s: float
    """On average, waits included."""
    steps: int
    """How many it has made in this quorum."""
    quorum: int
    replicas: int
    """In that quorum."""


def pace_of(windows: Sequence[RankWindow]) -> ReplicaPace | None:
    """Of a replica with these windows, one of each rank; None if they do not show it."""
    found = [(w, w.quorum) for w in windows if w.quorum is not None and w.steps]
    if not windows or len(found) < len(windows) or len({q.number for _, q in found}) > 1:
        return None
    steps = min(quorum.steps for _, quorum in found)
    if steps < 1:
        return None
    newest = min(steps, COMPARED)
    own, whole = [], []
    for window, quorum in found:
        times = window.steps[-newest:]
        own.append(median([s.own_ns for s in times]) / 1e9 - quorum.wait_s)
        whole.append(sum(s.step_ns for s in times) / len(times) / 1e9)
    first = found[0][1]
    return ReplicaPace(
        own_s=max(0.0, *own) if len(own) > 1 else max(0.0, own[0]),
        step_s=max(whole),
        steps=steps,
        quorum=first.number,
        replicas=first.replicas,
    )


def others_of(paces: Mapping[str, ReplicaPace], job: str) -> dict[str, ReplicaPace]:
    """The other replicas of the newest quorum among the others, if all of its members are known."""
    rest = {name: pace for name, pace in paces.items() if name != job}
    newest = max((pace.quorum for pace in rest.values()), default=-1)
    rest = {name: pace for name, pace in rest.items() if pace.quorum == newest}
    mine = paces.get(job)
    count = len(rest) + (mine is not None and mine.quorum == newest)
    return rest if rest and all(pace.replicas == count for pace in rest.values()) else {}


def _exact(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def slow_replica(paces: Mapping[str, ReplicaPace], job: str, windows: Sequence[RankWindow]) -> list[Finding]:
    """Whether this replica is the one that the others wait for."""
    mine, others = paces.get(job), others_of(paces, job)
    if mine is None or not others or any(pace.quorum != mine.quorum for pace in others.values()):
        return []
    if min(mine.steps, *(pace.steps for pace in others.values())) < STEPS:
        return []
    others_s = max(pace.own_s for pace in others.values())
    ratio = mine.own_s / max(others_s, 1e-9)
    if ratio < SLOWER or mine.own_s - others_s < LEAST_S:
        return []
    if any(pace.step_s < WAITED * mine.own_s for pace in others.values()):
        return []
    replicas = len(others) + 1
    which = "the other replica" if replicas == 2 else f"the slowest of the other {replicas - 1} replicas"
    finding = Finding(
        kind="replica-slow",
        ranks=(),
        node=node_of(windows),
        sentence=f"{job} takes {_exact(mine.own_s)} for its own part of a step, {which} "
        f"{_exact(others_s)}, and all wait for it",
        confidence=0.9,
        certainty="it may be as fast as the others again at any moment",
        inputs={
            "ratio": ratio,
            "own_s": mine.own_s,
            "others_s": others_s,
            "excess_s": mine.own_s - others_s,
            "cost": 1 - others_s / mine.own_s,
            "replicas": replicas,
            "quorum": mine.quorum,
        },
    )
    return [finding]
