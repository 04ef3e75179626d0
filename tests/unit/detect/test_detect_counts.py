"""Who left out a collective is told by what all had made by the same step; who counts otherwise is let be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from detect_windows import window

from torchloom.core.detect.counts import Tally, count
from torchloom.model.findings import Finding
from torchloom.model.windows import GroupPosition, StepTimes

STEPS = 200
Made = Callable[[int, int], int]
"""(rank, step) → how many collectives the rank enters in that step."""


def play(ranks: int, made: Made, steps: int = STEPS, lost: frozenset[int] = frozenset()) -> list[Finding]:
    """What is said in the end; every look has the newest steps, and some of them were lost."""
    known: dict[str, Tally] = {}
    told: list[Finding] = []
    totals = [[0] for _ in range(ranks)]
    for rank in range(ranks):
        for step in range(1, steps + 1):
            totals[rank].append(totals[rank][-1] + made(rank, step))
    for look in range(5, steps + 1, 5):
        windows = []
        for rank in range(ranks):
            seen = look - rank % 2  # they are not looked at at the same time
            newest = tuple(
                StepTimes(s, 10**8, 0, 0, ((0, totals[rank][s]),) if made(rank, s) else ())
                for s in range(max(1, seen - 11), seen + 1)
                if s not in lost
            )
            windows.append(
                window(rank, steps=newest, groups=(GroupPosition("dp", ranks, rank, totals[rank][seen], 0),))
            )
        known, told = count(windows, known)
    return told


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("each", [1, 3])
def test_who_left_one_out_is_named_among_two_as_well(ranks: int, each: int) -> None:
    (found,) = play(ranks, lambda r, s: 0 if r == 1 and s == 100 else each)
    assert (found.kind, found.ranks, found.certain) == ("divergence", (1,), True)
    assert not found.may_act
    number = "1 collective" if each == 1 else "3 collectives"
    assert f"left out {number} of group dp after step 99" in found.sentence
    assert found.inputs["step"] == 100


def test_it_is_told_though_windows_are_lost() -> None:
    lost = frozenset(range(90, 110))
    (found,) = play(2, lambda r, s: int(r != 1 or s != 100), lost=lost)
    assert found.ranks == (1,) and found.inputs["step"] == 90


def test_it_is_not_told_before_it_has_stayed() -> None:
    assert play(2, lambda r, s: int(r != 1 or s != 100), steps=105) == []


def test_ranks_that_agree_are_let_be() -> None:
    assert play(4, lambda r, s: 1 + (s % 10 == 0)) == []


def test_among_many_it_is_told_too_where_steps_have_different_numbers() -> None:
    (found,) = play(4, lambda r, s: 0 if r == 2 and s == 101 else 1 + (s % 3 == 0))
    assert found.ranks == (2,)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda r, s: 1 + (r == 0 and s % 10 == 0), id="one rank makes more now and then"),
        pytest.param(lambda r, s: 1 + (r == 0 and s == 1), id="one more from the start"),
        pytest.param(lambda r, s: 2 if r == 0 and s == 100 else 1, id="a step that was not counted"),
        pytest.param(lambda r, s: {100: 0, 101: 2}.get(s, 1) if r == 1 else 1, id="made up for at once"),
        pytest.param(lambda r, s: {100: 0, 106: 2}.get(s, 1) if r == 1 else 1, id="made up for later"),
        pytest.param(lambda r, s: 1 if s % 2 == r % 2 else 0, id="never in the same step"),
        pytest.param(lambda r, s: 1 + (s > 100 and r == 1 and s % 4 == 0), id="ever more"),
    ],
)
def test_what_scripts_may_do_is_let_be(ranks: int, made: Made) -> None:
    assert play(ranks, made) == []


def test_a_job_that_has_hardly_begun_is_not_judged() -> None:
    assert play(2, lambda r, s: int(r != 1 or s != 15)) == []


def test_a_group_of_which_not_all_are_heard_is_not_judged() -> None:
    windows = [window(r, size=4, steps=(StepTimes(1, 1, 0, 0, ((0, 1),)),)) for r in range(3)]
    assert count(windows, {}) == ({}, [])
