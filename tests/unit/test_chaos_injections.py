"""Seeded series of faults: repeatable, and nothing in them that would be refused."""

from __future__ import annotations

import pytest

from torchloom.chaos.injections import USUAL, series
from torchloom.core.injection import KINDS, check


def test_the_same_seed_gives_the_same_series_and_another_one_does_not() -> None:
    assert series(7, 4, 600, 20) == series(7, 4, 600, 20)
    assert series(7, 4, 600, 20) != series(8, 4, 600, 20)


@pytest.mark.parametrize("world", [1, 2, 8])
def test_everything_that_is_drawn_may_be_injected(world: int) -> None:
    for seed in range(20):
        for one in series(seed, world, 900, 10, tuple(KINDS)):
            check(one.fault, one.ranks, world)
            assert one.fault.kind in one.describe()


def test_it_keeps_to_its_time_and_its_kinds_and_uses_them_all() -> None:
    drawn = series(3, 4, 3600, 10)
    assert {one.fault.kind for one in drawn} == set(USUAL)
    assert all(0 <= one.after_s < 3600 for one in drawn)
    assert 250 < len(drawn) < 500
    assert {one.fault.kind for one in series(3, 4, 100, 10, ("kill",))} == {"kill"}
