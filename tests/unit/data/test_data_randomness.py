"""Samples get their own random numbers, whatever was learned of who draws them."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchloom.data import ElasticLoader, sample_seed
from torchloom.data.generators import NumpyGenerator, PythonGenerator, generators
from torchloom.data.order import seed_of, seeds_of
from torchloom.data.randomness import SeededReading

DRAWS: dict[str, Callable[[], float]] = {
    "python": random.random,
    "python gauss": lambda: random.gauss(0, 1),
    "torch": lambda: float(torch.rand(())),
    "torch normal": lambda: float(torch.randn(())),
    "numpy": lambda: float(numpy.random.rand()),
    "numpy normal": lambda: float(numpy.random.randn()),
    "none": lambda: 0.0,
}


def seeded(index: int, draw: Callable[[], float]) -> float:
    """What a sample draws when all generators are seeded for it."""
    seed = seed_of(7, 0, index)
    random.seed(seed)
    torch.manual_seed(seed)
    numpy.random.seed(seed & 0xFFFF_FFFF)
    return draw()


def states() -> list[str]:
    return [repr(random.getstate()), str(torch.get_rng_state().tolist()), repr(numpy.random.get_state())]


@pytest.mark.parametrize("name", DRAWS)
def test_a_sample_draws_as_if_everything_were_seeded_for_it(name: str) -> None:
    draw, reading = DRAWS[name], SeededReading()
    expected = [seeded(index, draw) for index in range(6)]
    batches = [reading.read(lambda _: draw(), (7, 0), range(at, at + 2)) for at in (0, 2, 4)]
    assert list(chain(*batches)) == expected


@pytest.mark.parametrize("late", [name for name in DRAWS if name != "none"])
@pytest.mark.parametrize("always", ["none", "torch", "python"])
def test_whoever_begins_to_draw_late_gets_the_same_numbers(always: str, late: str) -> None:
    """Also one normal number that was left over from before, which does not move the generator."""

    def sample(index: int) -> float:
        return DRAWS[always]() + (DRAWS[late]() if index > 4 else 0.0)

    expected = [seeded(index, lambda i=index: sample(i)) for index in range(8)]  # type: ignore[misc]
    random.gauss(0, 1), numpy.random.randn(), torch.randn(())  # each keeps a second one
    reading = SeededReading()
    found = [reading.read(sample, (7, 0), range(at, at + 2)) for at in (0, 2, 4, 6)]
    assert list(chain(*found)) == expected


@pytest.mark.parametrize("name", DRAWS)
def test_outside_nobody_notices(name: str) -> None:
    draw, reading = DRAWS[name], SeededReading()
    random.gauss(0, 1), numpy.random.randn()
    before = states()
    for at in (0, 2, 4):
        reading.read(lambda index: draw() if index else 0.0, (7, 0), range(at, at + 2))
        assert states() == before


def test_only_what_is_drawn_from_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[str] = []
    for one in generators():
        kept = one.seed
        monkeypatch.setattr(
            one, "seed", lambda seed, one=one, kept=kept: (seeds.append(one.name), kept(seed))
        )
    reading = SeededReading()
    reading.read(lambda _: torch.rand(()), (7, 0), range(2))
    assert sorted(seeds) == ["numpy"] * 2 + ["python"] * 2 + ["torch"] * 2, "the first batch shows who draws"
    seeds.clear()
    reading.read(lambda _: torch.rand(()), (7, 0), range(3))
    assert seeds == ["torch"] * 3


def test_an_error_reaches_the_caller_and_restores_the_generators() -> None:
    def sample(index: int) -> float:
        if index == 3:
            raise ValueError("sample 3")
        return random.random()

    reading = SeededReading()
    before = states()
    for start in (0, 2):
        try:
            reading.read(sample, (7, 0), range(start, start + 2))
        except ValueError as error:
            assert start == 2 and str(error) == "sample 3"
    assert states() == before and sample_seed() == 0


def test_the_states_are_those_of_the_modules() -> None:
    python, of_numpy = PythonGenerator(), NumpyGenerator(numpy)
    for one, draw in ((python, random.random), (of_numpy, numpy.random.rand)):
        state: Any = one.state()
        first = [draw() for _ in range(700)]
        assert not one.is_at(state)
        one.restore(state)
        assert one.is_at(state) and [draw() for _ in range(700)] == first


def test_without_a_known_layout_pythons_own_functions_are_used() -> None:
    one = PythonGenerator()
    one._memory = None
    state = one.state()
    first = random.random()
    assert not one.is_at(state)
    one.restore(state)
    assert one.is_at(state) and random.random() == first


def test_other_bits_of_numpy_are_left_alone() -> None:
    own = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.Philox(1))
    try:
        samples = SeededReading().read(lambda index: numpy.random.rand() and index, (7, 0), range(3))
        assert samples == [0, 1, 2]
    finally:
        numpy.random.set_bit_generator(own)


def test_a_loader_gives_the_same_samples_in_any_process() -> None:
    class Drawing:
        def __len__(self) -> int:
            return 24

        def __getitem__(self, index: int) -> Any:
            return index, random.random() if index % 5 == 0 else float(torch.rand(()))

    def samples(workers: int, batch: int) -> dict[int, float]:
        loader = ElasticLoader(Drawing(), batch, seed=3, num_workers=workers, rank=0, world=1)
        return {int(i): float(x) for indices, drawn in loader for i, x in zip(indices, drawn, strict=True)}

    assert samples(0, 4) == samples(0, 7) == samples(2, 4)


@given(
    st.lists(st.one_of(st.integers(), st.text(max_size=5)), min_size=2, max_size=4), st.lists(st.integers())
)
def test_many_seeds_are_those_of_each(prefix: list[int | str], lasts: list[int]) -> None:
    assert seeds_of(tuple(prefix), lasts) == [seed_of(*prefix, last) for last in lasts]
