"""Who meets whom, when all pairs are to be measured."""

from __future__ import annotations

import pytest

from torchloom.core.detect.tournament import MOST_ROUNDS, partners, schedule


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_in_a_tournament_everybody_meets_once_and_nobody_twice_a_round(n: int) -> None:
    rounds = schedule(list(range(n)))
    met = [frozenset(pair) for one in rounds for pair in one]
    assert len(met) == len(set(met)) == n * (n - 1) // 2
    assert all(len({r for pair in one for r in pair}) == 2 * len(one) for one in rounds)


@pytest.mark.parametrize("n", range(1, 17))
def test_every_rank_finds_its_partners_by_itself(n: int) -> None:
    for rank in range(n):
        met = [next((a + b - rank for a, b in one if rank in (a, b)), None) for one in schedule(range(n))]
        assert partners(rank, n) == met


@pytest.mark.parametrize("n", [100, 101, 1024])
def test_a_large_job_measures_some_pairs_and_both_ends_agree_when(n: int) -> None:
    orders = [partners(rank, n) for rank in range(n)]
    assert all(len(order) == MOST_ROUNDS for order in orders)
    for rank, order in enumerate(orders):
        assert all(other is None or orders[other][turn] == rank for turn, other in enumerate(order))
