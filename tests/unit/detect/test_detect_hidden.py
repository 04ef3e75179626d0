"""A slow rank of a large job: in every step some other rank takes as long by chance, so it costs no step."""

from __future__ import annotations

import pytest
from detect_windows import own, stepping

from torchloom.core.detect.attribute import stragglers
from torchloom.core.detect.cost import what_if
from torchloom.core.detect.slow import SlowLimits
from torchloom.core.detect.window import RankWindow

LIMITS = SlowLimits()
STEPS = 32


def garbage(ranks: int, slow: dict[int, float], since: int = 0) -> list[RankWindow]:
    """In each step a different rank collects garbage for as long as a step; `slow` ranks take so many times
    the time of the others from the step `since` on."""
    found = []
    for rank in range(ranks):
        times = own(rank, steps=STEPS)
        times = [t * (slow.get(rank, 1.0) if s >= since else 1.0) for s, t in enumerate(times)]
        times = [t + 0.3 * (s % ranks == rank) for s, t in enumerate(times)]
        found.append(stepping(rank, times, step_s=0.7, device=f"GPU-{rank}"))
    return found


@pytest.mark.parametrize("ranks", [8, 40, 300])
@pytest.mark.parametrize("slow", [{3: 1.4}, {3: 1.4, 6: 1.5}])
def test_ranks_that_are_slow_for_good_are_named_though_the_job_would_be_no_faster(
    ranks: int, slow: dict[int, float]
) -> None:
    windows = garbage(ranks, slow)
    assert what_if(windows, slow).share == 0.0
    found = stragglers(windows, LIMITS)
    assert sorted(r for f in found for r in f.ranks) == sorted(slow)
    assert {f.kind for f in found} == {"compute-slow"}
    assert all("the job loses no speed to it yet" in f.sentence and not f.may_act for f in found)


def test_a_rank_that_is_slow_for_a_few_steps_is_not() -> None:
    assert stragglers(garbage(40, {3: 1.4}, since=STEPS - 8), LIMITS) == []


def test_of_a_job_in_which_all_collect_garbage_nobody_is_named() -> None:
    assert [f.ranks for f in stragglers(garbage(40, {}), LIMITS) if f.ranks] == []
