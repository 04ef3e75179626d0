"""Random numbers that belong to a sample, not to the process that happens to read it.

While a sample is read, the global generators of Python, NumPy (if it is there) and torch start from a seed
made of (seed, epoch, sample). An augmentation then gives the same picture in whichever data worker, world
size or incarnation it runs. In the training process itself the generators are put back afterwards, because
dropout draws from them. Code with a generator of its own takes `sample_seed()`.

Seeding all three costs 10 µs a sample, and most datasets draw from none. So the first batch that a process
reads shows which generators are drawn from, and only those are seeded from then on. The others are looked at
after every batch: if somebody has drawn from one after all, the batch is read again with that one seeded
too. A generator from which samples draw a few numbers only is not seeded as a whole either (twister.py): if a
sample draws more, the batch is read again, too. What a sample is made of never depends on what was learned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from itertools import repeat
from operator import length_hint
from typing import Any

from torch.utils.data import get_worker_info

from torchloom.data.generators import Generator, generators
from torchloom.data.order import all_words_of, seed_of, seeds_of, words_of
from torchloom.data.twister import FIRST, TO_KEEP_ONE

SEEDED, WORDS = 1, 2
"""How the numbers of a sample begin: with those of its seed, as in the first versions of torchloom, whose
checkpoints are continued so; or, in the generators that take them, with words of its own."""
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
        self._long: set[str] = set()
        """Those from which a sample has drawn more than its own words."""
        self._plain = _Draws([], set())
        """For batches of which nothing is seeded: most datasets have no others."""

    def read(
        self, read: Callable[[int], Any], prefix: Key, indices: Sequence[int], numbers: int = SEEDED
    ) -> list[Any]:
        """The samples `read` finds, each with the random numbers of (*prefix, index); two parts or more."""
        while True:
            present = generators()
            if not self._drawn and self._drawn is not None:
                samples, drawn = self._unseeded(present, read, prefix, indices)
                if not drawn:
                    return samples  # nobody drew, as in most batches of most datasets
                self._drawn = drawn
                continue
            before = [generator.state() for generator in present]
            draws = _Draws(present, self._drawn, self._long, numbers)
            try:
                samples = draws.read(read, prefix, indices)
            finally:
                changed = _put_back(present, before)
            now = generators()
            if now is present and changed == self._drawn and not draws.long:
                return samples  # as in the batch before
            again = {generator.name for generator in now[len(present) :]}  # imported just now
            if self._drawn is not None:
                again |= (changed - self._drawn) | draws.long
            self._drawn = again | draws.drawn | (self._drawn or set())
            self._long |= draws.long
            if not again:
                return samples

    def _unseeded(
        self, present: list[Generator], read: Callable[[int], Any], prefix: Key, indices: Sequence[int]
    ) -> tuple[list[Any], set[str]]:
        """The samples, read with no generator seeded, and the generators that were drawn from or imported
        meanwhile."""
        before = [generator.state() for generator in present]
        draws = self._plain if _draws is not self._plain else _Draws([], set())
        try:
            samples = draws.read(read, prefix, indices)
        finally:
            changed = _put_back(present, before)
        now = generators()
        return samples, changed if now is present else changed | {one.name for one in now[len(present) :]}


def _put_back(present: list[Generator], before: list[Any]) -> set[str]:
    """The generators that were drawn from or seeded. In a data worker nothing else draws from them."""
    changed = [one for one in zip(present, before, strict=True) if not one[0].is_at(one[1])]
    if not changed:
        return set()
    if get_worker_info() is None:
        for generator, state in changed:
            generator.restore(state)
    return {generator.name for generator, _ in changed}


class _Draws:
    """The samples of one batch while they are read, with the generators that start anew for each."""

    def __init__(
        self,
        present: list[Generator],
        drawn: set[str] | None,
        long: Set[str] = frozenset(),
        numbers: int = SEEDED,
    ) -> None:
        seeded = present if drawn is None else [one for one in present if one.name in drawn]
        self._learns, self._takes_words = drawn is None, numbers >= WORDS
        self._brief = [
            one
            for one in seeded
            if self._takes_words and not self._learns and one.twister is not None and one.name not in long
        ]
        """Those that get the sample's words and no seed."""
        self._whole = [one for one in seeded if one not in self._brief]
        self._started: list[tuple[Generator, Any, bytes]] = []
        self.drawn: set[str] = set()
        """Those that were drawn from, if it learns."""
        self.long: set[str] = set()
        """Those from which a sample has drawn more than its own words, or which it has seeded."""
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
            if not self._whole and not self._brief:
                return list(map(read, self._coming))
            others = self._begin_briefly()
            samples = self._read(read)
            self._end()
            self._end_briefly(others)
        finally:
            _draws = outer
        return samples

    def _read(self, read: Callable[[int], Any]) -> list[Any]:
        one = (self._whole or self._brief)[0]
        is_only = len(self._whole) + len(self._brief) == 1 and not self._learns
        if is_only and self._brief:
            return self._read_briefly(read, one)
        if is_only and not (self._takes_words and one.takes_words):
            begin = one.seed
            return [
                (begin(seed), read(index))[1]
                for seed, index in zip(seeds_of(self._prefix, self._indices), self._coming, strict=True)
            ]
        samples = []
        seeds = seeds_of(self._prefix, self._indices)
        words = all_words_of(self._prefix, self._indices) if self._takes_words else repeat(b"", len(seeds))
        for seed, own, index in zip(seeds, words, self._coming, strict=True):
            self._start(seed, own)
            samples.append(read(index))
        return samples

    def _read_briefly(self, read: Callable[[int], Any], one: Generator) -> list[Any]:
        assert one.twister is not None
        given, position = one.twister.given, one.twister.position
        samples: list[Any] = []
        add, usual = samples.append, FIRST  # most samples of a dataset draw as much as the one before
        one.forget()
        # The words go straight from the list to where they belong: every name besides takes its time.
        for given.raw, index in zip(all_words_of(self._prefix, self._indices), self._coming, strict=True):
            position.value = FIRST
            add(read(index))
            if position.value != usual:
                usual = self._look_at(one, position.value)
        return samples

    def _look_at(self, one: Generator, position: int) -> int:
        """A sample has left the generator there; the position after which there is nothing to look at."""
        if FIRST <= position < FIRST + TO_KEEP_ONE:
            return position
        one.forget()
        if position < FIRST:
            self.long.add(one.name)
        return FIRST

    def _number(self) -> int:
        """Which of the samples is being read now."""
        return len(self._indices) - length_hint(self._coming) - 1

    def key(self) -> Key:
        """Of what is being read now."""
        number = self._number()
        return self._begun[1] if self._begun[0] == number else (*self._prefix, self._indices[number])

    def begin(self, key: Key) -> None:
        self._begun = self._number(), key
        if self._whole or self._brief:
            self._start(seed_of(*key), words_of(*key) if self._takes_words else b"")

    def _start(self, seed: int, words: bytes) -> None:
        self._end()
        for generator in self._whole:
            if self._takes_words:
                generator.start(seed, words)
            else:
                generator.seed(seed)
        for generator in self._brief:
            if generator.twister is not None:
                generator.twister.begin(words)
            generator.forget()
        if self._learns:
            self._started = [(one, one.state(), _others(one)) for one in self._whole]

    def _end(self) -> None:
        """Look at what was drawn since the last start."""
        for generator, state, others in self._started:
            if not generator.is_at(state):
                self.drawn.add(generator.name)
                if _has_used(generator) or _others(generator) != others:
                    self.long.add(generator.name)
        self.long |= {generator.name for generator in self._brief if _has_used(generator)}

    def _begin_briefly(self) -> list[bytes]:
        """Whoever copies the state of a generator gets no words of an earlier life of this process."""
        prefix = self._prefix
        return [
            one.twister.fill(prefix, lambda one=one: one.seed(seed_of(*prefix)))  # type: ignore[misc]
            for one in self._brief
            if one.twister is not None
        ]

    def _end_briefly(self, others: list[bytes]) -> None:
        for generator, before in zip(self._brief, others, strict=True):
            if _others(generator) != before:
                self.long.add(generator.name)


def _has_used(generator: Generator) -> bool:
    """Are the given words used up, as far as the position tells?"""
    return generator.twister is not None and generator.twister.position.value < FIRST


def _others(generator: Generator) -> bytes:
    return b"" if generator.twister is None else generator.twister.others()


_draws: _Draws | None = None
