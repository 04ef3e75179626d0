"""Windows for tests of detectors: a job in a few words."""

from __future__ import annotations

import random

from torchloom.core.detect.thresholds import Pace
from torchloom.core.detect.window import Collective, GroupPosition, ProcessFacts, RankWindow, StepTimes

SECOND = 10**9
PACE = Pace(steps=500, recent_s=(0.3,) * 100)
"""A job whose limit for saying is the floor of 2 s."""


def reduce(seq: int, ago_s: float, now_s: float = 1000.0, **change: object) -> Collective:
    """An all_reduce of group dp that is under way."""
    fields: dict[str, object] = {
        "op": "all_reduce", "group": "dp", "group_seq": seq, "bytes": 4096, "dtype": "float32",
        "entered_ns": round((now_s - ago_s) * SECOND),
    }  # fmt: skip
    return Collective(**{**fields, **change})  # type: ignore[arg-type]


def window(
    rank: int, *, size: int = 4, entered: int = 10, idle_s: float = 0.0, **change: object
) -> RankWindow:
    """A rank of a group `dp` of `size` ranks, at second 1000 of its clock."""
    fields: dict[str, object] = {
        "rank": rank, "node": "a" if rank < 2 else "b", "taken_ns": 1000 * SECOND, "started_ns": SECOND,
        "last_activity_ns": round((1000 - idle_s) * SECOND), "steps_done": 500,
        "groups": (GroupPosition("dp", size, rank, entered, entered),),
    }  # fmt: skip
    return RankWindow(**{**fields, **change})  # type: ignore[arg-type]


def waiting(rank: int, seq: int = 11, for_s: float = 2.4, size: int = 4, **change: object) -> RankWindow:
    """A rank that has entered number `seq` and waits in it."""
    return window(rank, size=size, entered=seq, idle_s=for_s, collectives=(reduce(seq, for_s),), **change)


def missing(rank: int, for_s: float = 2.4, size: int = 4, **facts: object) -> RankWindow:
    """A rank that has not entered number 11."""
    return window(rank, size=size, idle_s=for_s, process=ProcessFacts(**facts))  # type: ignore[arg-type]


def stepping(
    rank: int, own_s: list[float], *, step_s: float = 0.0, data_s: float = 0.0, **change: object
) -> RankWindow:
    """A rank with these own times in its newest steps; everybody's step takes `step_s`."""
    whole = step_s or max(own_s)
    steps = tuple(
        StepTimes(n + 1, round(whole * SECOND), round(data_s * SECOND), round((whole - own) * SECOND))
        for n, own in enumerate(own_s)
    )
    return window(rank, steps=steps, role="replica", **change)


def own(seed: int, factor: float = 1.0, steps: int = 16, noise: float = 0.02) -> list[float]:
    """Own times of a rank that takes 0.3 s a step, or so many times that."""
    chance = random.Random(seed)
    return [0.3 * factor * chance.lognormvariate(0, noise) for _ in range(steps)]
