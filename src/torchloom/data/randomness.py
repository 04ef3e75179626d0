"""Random numbers that belong to a sample, not to the process that happens to read it.

While a sample is read, the global generators of Python, NumPy (if it is there) and torch start from a seed
made of (seed, epoch, sample). An augmentation then gives the same picture in whichever data worker, world
size or incarnation it runs. In the training process itself the generators are put back afterwards, because
dropout draws from them. Code with a generator of its own takes `sample_seed()`.

Seeding all three costs 10 µs a sample, and most datasets draw from none. So the first batch that a process
reads shows which generators are drawn from, and only those are seeded from then on. The others are looked at
after every batch: if somebody has drawn from one after all, the batch is read again with that one seeded
too. What a sample is made of never depends on what was learned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import length_hint
from typing import Any

from torch.utils.data import get_worker_info

from torchloom.data.generators import Generator, generators
from torchloom.data.order import seed_of, seeds_of

Key = tuple[int | str, ...]
"""What names a sample, or one transform of a sample."""


def sample_seed() -> int:
    """The seed of the sample that is being read; 0 outside of one."""
    return 0 if _draws is None else seed_of(*_draws.key())


def draw_for(key: Key) -> None:
    """What is drawn from now on belongs to `key`."""
    if _draws is not None:
        _draws.begin(key)


class SeededReading:
    """How a process reads the samples of one dataset, and what it knows of their random numbers."""

    def __init__(self) -> None:
        self._drawn: set[str] | None = None
        """The generators that samples were seen to draw from; None before the first batch."""

    def read(self, read: Callable[[int], Any], prefix: Key, indices: Sequence[int]) -> list[Any]:
        """The samples `read` finds, each with the random numbers of (*prefix, index); two parts or more."""
        while True:
            present = generators()
            before = [generator.state() for generator in present]
            draws = _Draws(present, self._drawn)
            try:
                samples = draws.read(read, prefix, indices)
            finally:
                changed = _put_back(present, before)
            if not changed and self._drawn is not None and generators() is present:
                return samples  # nobody drew, as in most batches of most datasets
            unseeded = {generator.name for generator in generators()[len(present) :]}  # imported just now
            if self._drawn is not None:
                unseeded |= changed - self._drawn
            self._drawn = unseeded | draws.drawn | (self._drawn or set())
            if not unseeded:
                return samples


def _put_back(present: list[Generator], before: list[Any]) -> set[str]:
    """The generators that were drawn from or seeded. In a data worker nothing else draws from them."""
    changed = [
        (generator, state)
        for generator, state in zip(present, before, strict=True)
        if not generator.is_at(state)
    ]
    if not changed:
        return set()
    if get_worker_info() is None:
        for generator, state in changed:
            generator.restore(state)
    return {generator.name for generator, _ in changed}


class _Draws:
    """The samples of one batch while they are read, with the generators that start anew for each."""

    def __init__(self, present: list[Generator], drawn: set[str] | None) -> None:
        self._seeded = present if drawn is None else [one for one in present if one.name in drawn]
        self._learns = drawn is None
        self._started: list[tuple[Generator, Any]] = []
        self.drawn: set[str] = set()
        """Those that were drawn from, if it learns."""
        self._prefix: Key = ()
        self._indices: Sequence[int] = ()
        self._coming: Iterator[int] = iter(())
        """The indices after the one that is being read."""
        self._begun: tuple[int, Key] = -1, ()

    def read(self, read: Callable[[int], Any], prefix: Key, indices: Sequence[int]) -> list[Any]:
        global _draws
        self._prefix, self._indices, self._coming = prefix, indices, iter(indices)
        outer, _draws = _draws, self
        try:
            if self._seeded:
                samples = []
                for seed, index in zip(seeds_of(prefix, indices), self._coming, strict=True):
                    self._seed(seed)
                    samples.append(read(index))
                self._end()
            else:
                samples = list(map(read, self._coming))
        finally:
            _draws = outer
        return samples

    def _number(self) -> int:
        """Which of the samples is being read now."""
        return len(self._indices) - length_hint(self._coming) - 1

    def key(self) -> Key:
        """Of what is being read now."""
        number = self._number()
        return self._begun[1] if self._begun[0] == number else (*self._prefix, self._indices[number])

    def begin(self, key: Key) -> None:
        self._begun = self._number(), key
        if self._seeded:
            self._seed(seed_of(*key))

    def _seed(self, seed: int) -> None:
        if self._learns:
            self._end()
        for generator in self._seeded:
            generator.seed(seed)
        if self._learns:
            self._started = [(generator, generator.state()) for generator in self._seeded]

    def _end(self) -> None:
        for generator, state in self._started:
            if not generator.is_at(state):
                self.drawn.add(generator.name)


_draws: _Draws | None = None
