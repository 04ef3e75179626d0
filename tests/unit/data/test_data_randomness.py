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
from torchloom.data.generators import NumpyGenerator, PythonGenerator, TorchGenerator, generators
from torchloom.data.order import all_words_of, seed_of, seeds_of, words_of
from torchloom.data.randomness import SEEDED, WORDS, SeededReading, draw_for

DRAWS: dict[str, Callable[[], float]] = {
    "python": random.random,
    "python gauss": lambda: random.gauss(0, 1),
    "torch": lambda: float(torch.rand(())),
    "torch normal": lambda: float(torch.randn(())),
    "numpy": lambda: float(numpy.random.rand()),
    "numpy normal": lambda: float(numpy.random.randn()),
    "python, 8 numbers": lambda: sum(random.random() for _ in range(8)),
    "python, 9 numbers": lambda: sum(random.random() for _ in range(9)),
    "python, 620 numbers": lambda: sum(random.random() for _ in range(620)),  # the position is high again
    "numpy, 16 words": lambda: float(numpy.random.randint(0, 2**32, 16, dtype=numpy.uint32).sum()),
    "numpy, 17 words": lambda: float(numpy.random.randint(0, 2**32, 17, dtype=numpy.uint32).sum()),
    "numpy, a picture": lambda: float(numpy.random.normal(size=(3, 32, 32)).sum()),
    "all": lambda: random.random() + float(torch.rand(())) + numpy.random.rand(),
    "seeds itself": lambda: numpy.random.seed(5) or random.seed(6) or numpy.random.rand() + random.random(),
    "none": lambda: 0.0,
}
NUMBERS = pytest.mark.parametrize("numbers", [SEEDED, WORDS])


def seeded(index: int, draw: Callable[[], float], numbers: int = SEEDED) -> float:
    """What a sample draws when all generators are seeded for it."""
    seed = seed_of(7, 0, index)
    random.seed(seed)
    torch.manual_seed(seed)
    numpy.random.seed(seed & 0xFFFF_FFFF)
    if numbers == WORDS:
        (given,) = all_words_of((7, 0), [index])
        own = [int.from_bytes(given[at : at + 4], "little") for at in range(0, 64, 4)]
        version, words, _ = random.getstate()
        random.setstate((version, (*words[:608], *own, 608), None))
        words = numpy.random.get_state()[1]
        numpy.random.set_state(("MT19937", [*words[:608].tolist(), *own], 608))
    return draw()


def states() -> list[str]:
    return [repr(random.getstate()), str(torch.get_rng_state().tolist()), repr(numpy.random.get_state())]


@NUMBERS
@pytest.mark.parametrize("name", DRAWS)
def test_a_sample_draws_as_if_everything_were_seeded_for_it(name: str, numbers: int) -> None:
    draw, reading = DRAWS[name], SeededReading()
    expected = [seeded(index, draw, numbers) for index in range(6)]
    batches = [reading.read(lambda _: draw(), (7, 0), range(at, at + 2), numbers) for at in (0, 2, 4)]
    assert list(chain(*batches)) == expected


@NUMBERS
@pytest.mark.parametrize("late", [name for name in DRAWS if name != "none"])
@pytest.mark.parametrize("always", ["none", "torch", "python"])
def test_whoever_begins_to_draw_late_gets_the_same_numbers(always: str, late: str, numbers: int) -> None:
    """Also one normal number that was left over from before, which does not move the generator."""

    def sample(index: int) -> float:
        return DRAWS[always]() + (DRAWS[late]() if index > 4 else 0.0)

    expected = [seeded(index, lambda i=index: sample(i), numbers) for index in range(8)]  # type: ignore[misc]
    random.gauss(0, 1), numpy.random.randn(), torch.randn(())  # each keeps a second one
    reading = SeededReading()
    found = [reading.read(sample, (7, 0), range(at, at + 2), numbers) for at in (0, 2, 4, 6)]
    assert list(chain(*found)) == expected


@NUMBERS
@pytest.mark.parametrize("name", DRAWS)
def test_outside_nobody_notices(name: str, numbers: int) -> None:
    draw, reading = DRAWS[name], SeededReading()
    random.gauss(0, 1), numpy.random.randn()
    before = states()
    for at in (0, 2, 4):
        reading.read(lambda index: draw() if index else 0.0, (7, 0), range(at, at + 2), numbers)
        assert states() == before


def test_only_what_is_drawn_from_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy.random.seed(1), numpy.random.randn()  # keeps a second one, and is not drawn from for that
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


@pytest.mark.parametrize("draw", [random.random, numpy.random.rand], ids=["python", "numpy"])
def test_a_few_numbers_cost_no_whole_seed(monkeypatch: pytest.MonkeyPatch, draw: Callable[[], float]) -> None:
    reading = SeededReading()
    reading.read(lambda _: draw(), (8, 1), range(2), WORDS)
    reading.read(lambda _: draw(), (8, 0), range(2), WORDS)
    seeds: list[str] = []
    for one in generators():
        kept = one.seed
        monkeypatch.setattr(
            one, "seed", lambda seed, one=one, kept=kept: (seeds.append(one.name), kept(seed))
        )
    reading.read(lambda _: draw(), (8, 0), range(50), WORDS)
    assert seeds == []
    reading.read(lambda index: [draw() for _ in range(9 if index == 3 else 1)], (8, 0), range(5), WORDS)
    assert len(seeds) == 5, "read again, each sample seeded whole"


def test_whoever_puts_a_state_back_keeps_the_words_of_the_sample() -> None:
    def sample(_: int) -> tuple[float, float]:
        before = numpy.random.get_state()
        numpy.random.seed(3)
        own = numpy.random.rand()
        numpy.random.set_state(before)
        return own, numpy.random.rand()

    expected = [seeded(index, lambda: float(numpy.random.rand()), WORDS) for index in range(6)]
    numpy.random.seed(3)
    own = numpy.random.rand()
    reading = SeededReading()
    found = [reading.read(sample, (7, 0), range(at, at + 2), WORDS) for at in (0, 2, 4)]
    assert list(chain(*found)) == [(own, number) for number in expected]


def test_transforms_have_words_of_their_own() -> None:
    def sample(index: int) -> list[float]:
        draw_for((7, 0, index, "a"))
        first = [random.random() for _ in range(9 if index == 5 else 1)]
        draw_for((7, 0, index, "b"))
        return [*first, random.random(), numpy.random.rand()]

    whole = [SeededReading().read(sample, (7, 0), [index], WORDS)[0] for index in range(8)]
    reading = SeededReading()
    found = [reading.read(sample, (7, 0), range(at, at + 2), WORDS) for at in (0, 2, 4, 6)]
    assert list(chain(*found)) == whole


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
    assert TorchGenerator()._known, "this torch keeps its state elsewhere: it is only slower"
    draws: list[tuple[Any, Callable[[], float]]] = [
        (PythonGenerator(), random.random),
        (PythonGenerator(), lambda: random.gauss(0, 1)),
        (NumpyGenerator(numpy), numpy.random.rand),
        (NumpyGenerator(numpy), numpy.random.randn),
        (TorchGenerator(), lambda: float(torch.rand(()))),
        (TorchGenerator(), lambda: float(torch.randn(()))),
        (TorchGenerator(), lambda: float(torch.randn((), dtype=torch.float64))),
    ]
    for one, draw in draws:
        random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
        state: Any = one.state()
        first = [draw() for _ in range(700)]
        assert not one.is_at(state)
        one.restore(state)
        assert one.is_at(state) and [draw() for _ in range(700)] == first


def test_words_are_put_where_the_modules_look_for_them() -> None:
    assert PythonGenerator().twister is not None, "this Python keeps its state elsewhere: it is only slower"
    assert NumpyGenerator(numpy)._keeps is not None, "this NumPy keeps its state elsewhere: it is only slower"
    words, found = words_of(1, 2), []
    for known in (True, False):
        python, of_numpy = PythonGenerator(), NumpyGenerator(numpy)
        if not known:
            python._memory = of_numpy._keeps = None
        of_numpy.state()
        before = [python.state(), of_numpy.state()]
        python.start(5, words)
        of_numpy.start(5, words)
        ours = [random.random(), numpy.random.rand(), random.getrandbits(32), numpy.random.randn()]
        python.restore(before[0]), of_numpy.restore(before[1])
        assert ours[0] == ours[1], "both begin with the same words"
        found.append(ours)
    assert found[0] == found[1]


def test_without_a_known_layout_the_modules_own_functions_are_used() -> None:
    python, of_torch = PythonGenerator(), TorchGenerator()
    python._memory, of_torch._known = None, False
    ways: list[tuple[Any, Callable[[], float]]] = [
        (python, random.random),
        (of_torch, lambda: float(torch.rand(()))),
    ]
    for one, draw in ways:
        state = one.state()
        first = draw()
        assert not one.is_at(state)
        one.restore(state)
        assert one.is_at(state) and draw() == first


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_normal_number_that_torch_keeps_for_later_counts_as_state(dtype: torch.dtype) -> None:
    one = TorchGenerator()
    torch.manual_seed(3)
    torch.randn(1, dtype=dtype)  # makes two
    state = one.state()
    second = torch.randn(1, dtype=dtype)
    assert not one.is_at(state), "its words are what they were, and yet it was drawn from"
    one.restore(state)
    assert torch.equal(torch.randn(1, dtype=dtype), second)


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


def test_a_run_of_an_earlier_version_continues_with_its_numbers() -> None:
    class Drawing:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> Any:
            return index, random.random()

    def samples(state: dict[str, Any]) -> dict[int, float]:
        loader = ElasticLoader(Drawing(), 4, rank=0, world=1)
        loader.load_state_dict(state)
        assert loader.state_dict() == {"numbers": SEEDED} | state
        return {int(i): float(x) for indices, drawn in loader for i, x in zip(indices, drawn, strict=True)}

    new = ElasticLoader(Drawing(), 4, seed=7, rank=0, world=1).state_dict()
    assert new["numbers"] == WORDS
    old = {name: value for name, value in new.items() if name != "numbers"}
    for state, numbers in ((new, WORDS), (old, SEEDED)):
        assert samples(state) == {index: seeded(index, random.random, numbers) for index in range(12)}


@given(
    st.lists(st.one_of(st.integers(), st.text(max_size=5)), min_size=2, max_size=4), st.lists(st.integers())
)
def test_many_seeds_are_those_of_each(prefix: list[int | str], lasts: list[int]) -> None:
    assert seeds_of(tuple(prefix), lasts) == [seed_of(*prefix, last) for last in lasts]
    many = lasts + list(range(40))
    assert all_words_of(tuple(prefix), many) == [all_words_of(tuple(prefix), [last])[0] for last in many]
