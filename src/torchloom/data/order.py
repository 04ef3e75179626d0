"""The deterministic order of samples: who gets which sample, as pure functions.

Owns the shuffle of an epoch, the cut of a global batch into the ranks' shares, their gradient weights and the
seed of a single sample. It reads nothing, keeps no position and does not know datasets or loaders.

The shuffle is a **bijection computed place by place**: a Feistel network over the smallest power of two that
holds the epoch, walked until it lands inside. It needs no memory, whatever the number of samples, any rank
can ask for any place, and it is our own arithmetic: `torch.randperm` promises no stability between versions,
and a run that is resumed after an upgrade must not see another order. Numbers stay below 2**63, so that
the arithmetic is the same on Python's integers (3 µs a place) and on NumPy's 32-bit words (30 ns, for
thousands at once); without NumPy there is only the former.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache, partial
from typing import Any

from torchloom.core.config.batch_shares import WHOLE, LightRanks

LARGEST = 2**62
"""The largest number of places that can be shuffled."""

_ROUNDS = 8
_WORD = 0xFFFF_FFFF
_SPREAD, _SPREAD_AGAIN = 0x9E3779B1, 0x2C1B3C6D
_VECTOR_FROM = 128
"""Fewer places are quicker without an array."""
_FEW = 24
"""The same for places that need another pass."""
_CACHED = 16384
"""Places whose arrays stay in the cache from one operation to the next."""
_BLOCK = 4096
_LONG, _STEP = 0xFFFF_FFFF_FFFF_FFFF, 0x9E37_79B9_7F4A_7C15
_MIXES, _LAST_SHIFT = ((30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB)), 31
"""Of splitmix64: shifts and factors."""


class Permutation:
    """A shuffle of `range(length)`, the same for the same key on every machine and every version."""

    def __init__(self, length: int, *key: int | str) -> None:
        if not 0 <= length <= LARGEST:
            raise ValueError(f"cannot shuffle {length} places")
        self.length = length
        self._block: tuple[int, list[int]] = (-1, [])
        bits = max(4, (length - 1).bit_length())
        self._low = bits // 2
        self._low_mask = (1 << self._low) - 1
        self._high_mask = (1 << (bits - self._low)) - 1
        digest = hashlib.blake2b(repr(key).encode(), digest_size=8 * _ROUNDS, person=b"loom order").digest()
        words = [int.from_bytes(digest[at : at + 4], "little") for at in range(0, len(digest), 4)]
        self._keys = [(words[2 * n] >> 1, words[2 * n + 1]) for n in range(_ROUNDS)]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, place: int) -> int:
        if not 0 <= place < self.length:
            raise IndexError(place)
        return self._walk(self._mix(place))

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self.length, _BLOCK):
            yield from self.at(range(start, min(start + _BLOCK, self.length)))

    def at(self, places: Sequence[int]) -> list[int]:
        """The samples at these places. The more at once, the cheaper each."""
        numpy = _numpy()
        if numpy is None or len(places) < _VECTOR_FROM:
            return [self[place] for place in places]
        if min(places) < 0 or max(places) >= self.length:
            raise IndexError((min(places), max(places)))
        return self._walked(numpy, numpy.array(places, dtype=numpy.int64))

    def of(self, runs: Sequence[range]) -> Iterator[list[int]]:
        """The samples of each run of places."""
        numpy, counts = _numpy(), [len(run) for run in runs]
        if numpy is None or sum(counts) < _VECTOR_FROM:
            yield from ([self[place] for place in run] for run in runs)
            return
        starts, lengths = numpy.array([run.start for run in runs], numpy.int64), numpy.array(counts)
        ends = lengths.cumsum()
        places = numpy.arange(ends[-1]) + (starts - ends + lengths).repeat(lengths)
        found, start = self._walked(numpy, places), 0
        for count in counts:
            yield found[start : start + count]
            start += count

    def _walked(self, numpy: Any, places: Any) -> list[int]:
        """An array of places through the network, each until it lands inside."""
        found: list[int] = []
        for start in range(0, len(places), _CACHED):
            values = self._mixed(numpy, places[start : start + _CACHED])
            outside = numpy.flatnonzero(values >= self.length)
            while len(outside) > _FEW:
                again = self._mixed(numpy, values[outside])
                values[outside] = again
                outside = outside[again >= self.length]
            for place in outside.tolist():
                values[place] = self._walk(int(values[place]))
            found += values.tolist()
        return found

    def _mixed(self, numpy: Any, value: Any) -> Any:
        """What `_mix` does, for an array: the same arithmetic in 32-bit words, which overflow as `_WORD` cuts
        off, and without a new array for each operation."""
        word = numpy.uint32
        high, low = (value >> self._low).astype(word), (value & self._low_mask).astype(word)
        half, shifted = numpy.empty_like(high), numpy.empty_like(high)
        for n, (key, plus) in enumerate(self._keys):
            source, target, mask = (high, low, self._low_mask) if n % 2 else (low, high, self._high_mask)
            numpy.bitwise_xor(source, word(key), out=half)
            half *= word(_SPREAD)
            half ^= numpy.right_shift(half, word(15), out=shifted)
            half += word(plus)
            half *= word(_SPREAD_AGAIN)
            half ^= numpy.right_shift(half, word(13), out=shifted)
            half &= word(mask)
            target ^= half
        return (high.astype(numpy.int64) << self._low) | low

    def span(self, start: int, stop: int) -> list[int]:
        """The samples from `start` to before `stop`, for sequential reading: it keeps a block."""
        found: list[int] = []
        while start < stop:
            number = start // _BLOCK
            if self._block[0] != number:
                first = number * _BLOCK
                self._block = number, self.at(range(first, min(first + _BLOCK, self.length)))
            until = min(stop, (number + 1) * _BLOCK)
            found += self._block[1][start - number * _BLOCK : until - number * _BLOCK]
            start = until
        return found

    def _walk(self, value: int) -> int:
        """On through the network until it lands inside."""
        while value >= self.length:
            value = self._mix(value)
        return value

    def _mix(self, value: int) -> int:
        """One pass through the network."""
        high, low = value >> self._low, value & self._low_mask
        for n, (key, plus) in enumerate(self._keys):
            if n % 2:
                low = low ^ (_scramble(high, key, plus) & self._low_mask)
            else:
                high = high ^ (_scramble(low, key, plus) & self._high_mask)
        return (high << self._low) | low


@cache
def _numpy() -> Any:
    """NumPy, if it is there."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def _scramble(half: int, key: int, plus: int) -> int:
    """Spread 31 bits over 32. Both factors keep every product below 2**63."""
    half = ((half ^ key) * _SPREAD) & _WORD
    half = (half ^ (half >> 15)) + plus & _WORD
    half = (half * _SPREAD_AGAIN) & _WORD
    return half ^ (half >> 13)


def spans(
    length: int, position: int, size: int, drop_last: bool, skips: Sequence[tuple[int, int]] = ()
) -> Iterator[tuple[int, int]]:
    """The global batches from `position` to the end of the epoch, as (first place, place after the last).

    Places in `skips` (in order, apart from each other) are left out: a batch that would reach into them ends
    before them.
    """
    coming = [skip for skip in skips if skip[1] > position]
    while True:
        while coming and coming[0][0] <= position:
            position = max(position, coming.pop(0)[1])
        end = min(position + size, length)
        if position >= length or (end < position + size and drop_last):
            return
        stop = min(end, coming[0][0]) if coming else end
        yield position, stop
        position = stop


def share(count: int, rank: int, world: int) -> tuple[int, int]:
    """The contiguous share of a rank in `count` things; the first ranks get one more if uneven."""
    each, more = divmod(count, world)
    start = rank * each + min(rank, more)
    return start, start + each + (rank < more)


def light_share(count: int, rank: int, world: int, light: LightRanks) -> tuple[int, int]:
    """The contiguous share of a rank where some take less than the others: every sample is somebody's."""
    if not light:
        return share(count, rank, world)
    missing = sum(WHOLE - part for _, part in light)
    whole = world * WHOLE - missing
    mine = WHOLE
    before = rank * WHOLE
    for other, part in light:
        if other < rank:
            before -= WHOLE - part
        elif other == rank:
            mine = part
    return _nearest(count * before, whole), _nearest(count * (before + mine), whole)


def _nearest(part: int, whole: int) -> int:
    return (2 * part + whole) // (2 * whole)


def weight(local: int, total: int, world: int) -> float:
    """What a rank multiplies its mean loss by, so that the mean over ranks is the mean over samples."""
    return local * world / total if total else 0.0


def seed_of(*key: int | str) -> int:
    """A seed of 63 bits for one sample: depends on its name only, never on who reads it or when."""
    return _seed(_hash(repr(key)))


def seeds_of(prefix: tuple[int | str, ...], lasts: Sequence[int]) -> list[int]:
    """`seed_of(*prefix, last)` for each, in half the time. The prefix has two parts or more."""
    begun = _hash(repr(prefix)[:-1])
    seeds = []
    for last in lasts:
        whole = begun.copy()
        whole.update(b", %d)" % last)
        seeds.append(_seed(whole))
    return seeds


def words_of(*key: int | str) -> bytes:
    """64 random bytes for a name: eight words."""
    return hashlib.blake2b(repr(key).encode(), person=b"loom numbers").digest()


def all_words_of(prefix: tuple[int | str, ...], lasts: Sequence[int]) -> list[bytes]:
    """64 random bytes for each (*prefix, last): the words of the prefix, each advanced so many times and then
    mixed (splitmix64). The more at once, the cheaper each."""
    begun, numpy = _begun_words(prefix), _numpy()
    if numpy is None or len(lasts) < _FEW:
        return _few_words_of(begun, lasts)
    step, last_shift, row, *mixes = _constants()
    try:
        steps = numpy.fromiter(lasts, numpy.uint64, len(lasts))
    except OverflowError:  # negative, or of more than 64 bits
        return _few_words_of(begun, lasts)
    steps *= step
    words = numpy.add.outer(steps, numpy.frombuffer(begun, "<u8"))
    shifted = numpy.empty_like(words)
    for shift, factor in mixes:
        words ^= numpy.right_shift(words, shift, shifted)
        words *= factor
    words ^= numpy.right_shift(words, last_shift, shifted)
    found: list[bytes] = words.astype("<u8", copy=False).view(row).ravel().tolist()
    return found


def _few_words_of(begun: bytes, lasts: Sequence[int]) -> list[bytes]:
    own = struct.unpack("<8Q", begun)
    return [struct.pack("<8Q", *(_mixed(word + last * _STEP & _LONG) for word in own)) for last in lasts]


@lru_cache(maxsize=8)
def _begun_words(prefix: tuple[int | str, ...]) -> bytes:
    """All batches of an epoch begin with the same."""
    return words_of(*prefix)


@cache
def _constants() -> Any:
    """Arrays of no dimension: NumPy takes half as long with them as with numbers of its own."""
    numpy = _numpy()
    one = partial(numpy.array, dtype=numpy.uint64)
    mixes = [(one(shift), one(factor)) for shift, factor in _MIXES]
    return one(_STEP), one(_LAST_SHIFT), numpy.dtype("V64"), *mixes


def _mixed(word: int) -> int:
    for shift, factor in _MIXES:
        word = (word ^ word >> shift) * factor & _LONG
    return word ^ word >> _LAST_SHIFT


def _hash(text: str) -> Any:
    return hashlib.blake2b(text.encode(), digest_size=8, person=b"loom sample")


def _seed(whole: Any) -> int:
    return int.from_bytes(whole.digest(), "little") >> 1
