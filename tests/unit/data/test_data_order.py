"""The shuffle: a bijection, the same for ever, and even enough."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from torchloom.data.order import Permutation, seed_of, share, spans, weight

PINNED = [6, 0, 10, 2, 7, 5, 9, 8, 11, 4, 1, 3]
PINNED_LARGE = [719710892499733, 540769452375248, 17779483804631]
PINNED_SEED = 6458968897963990086


@pytest.mark.parametrize("length", [0, 1, 2, 3, 5, 16, 17, 1000, 4097])
def test_every_place_is_taken_once(length: int) -> None:
    assert sorted(Permutation(length, 1, 2)) == list(range(length))


def test_the_order_never_changes() -> None:
    """These numbers are a promise: a run resumed by a later torchloom must see the same order."""
    assert list(Permutation(12, 7, 0)) == PINNED
    assert Permutation(10**15, 7, 3).span(10**14, 10**14 + 3) == PINNED_LARGE
    assert seed_of(1, 2, 3) == PINNED_SEED


def test_with_and_without_numpy_the_order_is_the_same() -> None:
    code = "import sys; sys.modules['numpy'] = None; from torchloom.data.order import Permutation as P; "
    code += "print(P(100_003, 5, 9).span(500, 7000))"
    environment = {"PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    plain = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert plain.stdout.decode().strip() == str(Permutation(100_003, 5, 9).span(500, 7000))


@pytest.mark.parametrize("length", [129, 65_537, 100_003, 2**20, 2**33 + 1, 10**15, 2**62])
def test_many_places_at_once_are_those_of_each(length: int) -> None:
    """Also over the edge of what is looked up together, in runs of any length and place."""
    order, end = Permutation(length, 11, 3), min(length, 40_000)
    some = [*range(0, end, 7), length - 1, length // 2]
    assert order.at(some) == [order[place] for place in some]
    runs = [range(start, min(end, start + 5 + start % 3)) for start in range(0, end, 61)]
    assert list(order.of(runs)) == [[order[place] for place in run] for run in runs]


@pytest.mark.parametrize("length", [3, 5, 8, 13])
def test_every_sample_is_as_likely_in_every_place(length: int) -> None:
    draws = 4000
    seen = Counter(
        (place, value) for seed in range(draws) for place, value in enumerate(Permutation(length, seed))
    )
    expected = draws / length
    chi_square = sum((seen[p, v] - expected) ** 2 / expected for p in range(length) for v in range(length))
    freedom = (length - 1) ** 2
    assert chi_square < freedom + 6 * (2 * freedom) ** 0.5 + 6


def test_neighbours_do_not_stay_together() -> None:
    order = Permutation(100_000, 3, 1).span(0, 20_000)
    near = sum(abs(a - b) < 100 for a, b in pairwise(order))
    assert near < 100  # 40 expected by chance
    other = Permutation(100_000, 3, 2).span(0, 20_000)
    assert sum(a == b for a, b in zip(order, other, strict=True)) < 10


def test_shares_are_contiguous_and_differ_by_one() -> None:
    shares = [share(10, rank, 4) for rank in range(4)]
    assert shares == [(0, 3), (3, 6), (6, 8), (8, 10)]
    assert sum(weight(b - a, 10, 4) for a, b in shares) / 4 == pytest.approx(1.0)


def test_the_last_batch_is_short_or_left_out() -> None:
    assert list(spans(10, 0, 4, False)) == [(0, 4), (4, 8), (8, 10)]
    assert list(spans(10, 0, 4, True)) == [(0, 4), (4, 8)]
    assert list(spans(10, 10, 4, False)) == []


@pytest.mark.parametrize("sizes", [[64] * 8, [64] * 8 + [17], [1] * 300, [300], [5, 600, 1]])
def test_runs_of_places_give_the_samples_of_each_place(sizes: list[int]) -> None:
    """Runs of one size are worked out together in a shorter way than others."""
    order = Permutation(5000, 3, 1)
    starts = [97 * n for n in range(len(sizes))] if len(sizes) < 50 else list(range(0, 4 * len(sizes), 4))
    runs = [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    assert list(order.of(runs)) == [[order[place] for place in run] for run in runs]
