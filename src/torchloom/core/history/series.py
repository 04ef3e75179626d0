"""Bounded time series: values in buckets of time, with mean, lowest and highest kept. Pure.

A `Lanes` holds the same series for several lanes (ranks; one for a job's own values). When its buckets are
used up it either drops the oldest (what is recent) or merges every two into one of twice the width (the whole
life of a job), so it never grows. Merging keeps the extremes: a spike of one step is still seen a day later.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec import Struct

NAN = math.nan
T = TypeVar("T", int, float)
Join = Callable[[list[tuple[float, float, float]]], list[float]]


class Bucket(Struct, frozen=True):
    """What one lane showed in one span of time; `mean` is NaN when nothing was recorded."""

    at_s: float
    """Where the span begins."""
    mean: float
    low: float
    high: float
    extras: tuple[float, ...] = ()
    code: int = 0


class PackedLanes(Struct, frozen=True):
    """As it is stored."""

    width_s: float
    limit: int
    halves: bool
    lanes: int
    first: int
    mean: bytes
    low: bytes
    high: bytes
    count: bytes
    extras: tuple[bytes, ...]
    codes: bytes


@dataclass
class Lanes:
    """Series of equal buckets. Arrays are bucket by bucket, and within a bucket lane by lane."""

    width_s: float
    limit: int
    """Buckets at most; even."""
    halves: bool
    lanes: int = 1
    extra: int = 0
    """Further values whose mean alone is kept."""
    first: int = 0
    """Place in time of the first bucket, in widths."""
    mean: array[float] = field(default_factory=lambda: array("f"))
    low: array[float] = field(default_factory=lambda: array("f"))
    high: array[float] = field(default_factory=lambda: array("f"))
    count: array[int] = field(default_factory=lambda: array("H"))
    extras: list[array[float]] = field(default_factory=list)
    codes: array[int] = field(default_factory=lambda: array("B"))
    """The phase of a lane; of several the highest is kept."""

    def __post_init__(self) -> None:
        self.extras = self.extras or [array("f") for _ in range(self.extra)]

    @property
    def buckets(self) -> int:
        return len(self.count) // self.lanes

    def add(
        self,
        at_s: float,
        mean: float,
        low: float | None = None,
        high: float | None = None,
        *,
        lane: int = 0,
        extras: tuple[float, ...] = (),
        code: int = 0,
        count: int = 1,
    ) -> None:
        """Record a value. What is older than the first bucket is dropped: clocks may be set back."""
        at = self._reach(at_s)
        if at < 0:
            return
        self._merge(
            at * self.lanes + lane, mean, mean if low is None else low, mean if high is None else high,
            extras, code, count,
        )  # fmt: skip

    def _reach(self, at_s: float) -> int:
        """Number of the bucket for a time, made if need be; negative when it is too old."""
        if not self.count:
            self.first = int(at_s // self.width_s)
        while (at := int(at_s // self.width_s) - self.first) >= self.limit:
            if self.halves:
                self._halve()
            else:
                self._drop(at - self.limit + 1)
        self._grow(at + 1)
        return at

    def _grow(self, buckets: int) -> None:
        missing = buckets - self.buckets
        if missing > 0:
            blank = array("f", [NAN]) * (missing * self.lanes)
            for floats in self._floats():
                floats.extend(blank)
            self.count.extend(array("H", [0]) * (missing * self.lanes))
            self.codes.extend(array("B", [0]) * (missing * self.lanes))

    def _merge(
        self, at: int, mean: float, low: float, high: float, extras: tuple[float, ...], code: int, count: int
    ) -> None:
        known = self.count[at]
        self.codes[at] = max(self.codes[at], code)
        if math.isnan(mean):
            return
        if not known:
            self.mean[at], self.low[at], self.high[at] = mean, low, high
            for values, value in zip(self.extras, extras, strict=False):
                values[at] = value
        else:
            share = count / (known + count)
            self.mean[at] += (mean - self.mean[at]) * share
            self.low[at] = min(self.low[at], low)
            self.high[at] = max(self.high[at], high)
            for values, value in zip(self.extras, extras, strict=False):
                values[at] += (value - values[at]) * share
        self.count[at] = min(known + count, 65_535)

    def _drop(self, buckets: int) -> None:
        for floats in self._floats():
            del floats[: buckets * self.lanes]
        del self.count[: buckets * self.lanes]
        del self.codes[: buckets * self.lanes]
        self.first += buckets

    def _halve(self) -> None:
        """Merge every two buckets, lane by lane at once: a thousand lanes are done in some hundredths of a
        second."""
        size = self.lanes
        if self.first % 2:  # the first has no partner
            self._put_blank_first()
        if self.buckets % 2:
            self._grow(self.buckets + 1)
        pairs = range(0, len(self.count), 2 * size)
        shares = array("f")
        """Of the second of two."""
        counts = array("H")
        for at in pairs:
            one, two = self.count[at : at + size], self.count[at + size : at + 2 * size]
            shares.extend([b / (a + b) if a + b else 0.0 for a, b in zip(one, two, strict=True)])
            counts.extend([min(a + b, 65_535) for a, b in zip(one, two, strict=True)])

        def halved(values: array[float], join: Join) -> None:
            made = array("f")
            for number, at in enumerate(pairs):
                share = shares[number * size : (number + 1) * size]
                first, second = values[at : at + size], values[at + size : at + 2 * size]
                made.extend(join(list(zip(first, second, share, strict=True))))
            values[:] = made

        for floats in (self.mean, *self.extras):
            halved(floats, _means)
        halved(self.low, _lows)
        halved(self.high, _highs)
        codes = array("B")
        for at in pairs:
            codes.extend(map(max, self.codes[at : at + size], self.codes[at + size : at + 2 * size]))
        self.count, self.codes = counts, codes
        self.width_s, self.first = 2 * self.width_s, self.first // 2

    def _put_blank_first(self) -> None:
        for floats in self._floats():
            floats[:0] = array("f", [NAN]) * self.lanes
        self.count[:0] = array("H", [0]) * self.lanes
        self.codes[:0] = array("B", [0]) * self.lanes
        self.first -= 1

    def widen(self, lanes: int) -> None:
        """Make room for more lanes; those there were keep what they have."""
        if lanes <= self.lanes:
            return
        more = lanes - self.lanes
        for floats in self._floats():
            floats[:] = _padded(floats, self.lanes, array("f", [NAN]) * more)
        self.count = _padded(self.count, self.lanes, array("H", [0]) * more)
        self.codes = _padded(self.codes, self.lanes, array("B", [0]) * more)
        self.lanes = lanes

    def _floats(self) -> tuple[array[float], ...]:
        return (self.mean, self.low, self.high, *self.extras)

    def times(self, since_s: float, most: int) -> list[float]:
        """Where the points that are read with the same arguments begin."""
        spans = self._spans(since_s, self.per_point(since_s, most))
        return [start * self.width_s for start, _ in spans]

    def matrix(
        self, values: array[float] | array[int], since_s: float, columns: int, rows: int
    ) -> list[list[float]]:
        """The highest of `values` (one of our arrays) in at most `columns` spans of time, for groups
        of lanes that make at most `rows` rows; NaN where there is none. Row by row."""
        per, lanes = self.lanes_per_row(rows), self.lanes
        spans = list(self._spans(since_s, self.per_point(since_s, columns)))
        made = []
        for lane in range(0, lanes, per):
            row = []
            for start, stop in spans:
                found = NAN
                for at in range((start - self.first) * lanes + lane, (stop - self.first) * lanes, lanes):
                    for value in values[at : at + min(per, lanes - lane)]:
                        if not value <= found and value == value:
                            found = value
                row.append(found)
            made.append(row)
        return made

    def lanes_per_row(self, rows: int) -> int:
        return max(1, -(-self.lanes // max(1, rows)))

    def read(self, since_s: float, most: int, lane: int = 0) -> list[Bucket]:
        """Buckets of a lane from `since_s` on, merged to at most `most`, oldest first, empty ones too."""
        per = self.per_point(since_s, most)
        return [self._joined(start, stop, lane) for start, stop in self._spans(since_s, per)]

    def per_point(self, since_s: float, most: int) -> int:
        """How many buckets one of `most` points covers."""
        wanted = self.first + self.buckets - max(self.first, int(since_s // self.width_s))
        return max(1, -(-wanted // max(1, most - 1)))

    def _spans(self, since_s: float, per: int) -> Iterator[tuple[int, int]]:
        """Aligned in time, so that the same points come again when they are read a second later."""
        place, end = max(self.first, int(since_s // self.width_s)), self.first + self.buckets
        while place < end:
            stop = min(end, (place // per + 1) * per)
            yield place, stop
            place = stop

    def _joined(self, start: int, stop: int, lane: int) -> Bucket:
        one = Lanes(1.0, 2, False, 1, len(self.extras))
        one._grow(1)
        for place in range(start, stop):
            at = (place - self.first) * self.lanes + lane
            one._merge(
                0, self.mean[at], self.low[at], self.high[at],
                tuple(values[at] for values in self.extras), self.codes[at], max(1, self.count[at]),
            )  # fmt: skip
        extras = tuple(values[0] for values in one.extras)
        return Bucket(start * self.width_s, one.mean[0], one.low[0], one.high[0], extras, one.codes[0])

    def snapshot(self) -> Lanes:
        """A copy that no longer changes, for a reader in another thread."""
        made = Lanes(self.width_s, self.limit, self.halves, self.lanes, self.extra, self.first)
        made.mean, made.low, made.high = self.mean[:], self.low[:], self.high[:]
        made.count, made.codes = self.count[:], self.codes[:]
        made.extras = [values[:] for values in self.extras]
        return made

    def pack(self) -> PackedLanes:
        return PackedLanes(
            width_s=self.width_s,
            limit=self.limit,
            halves=self.halves,
            lanes=self.lanes,
            first=self.first,
            mean=self.mean.tobytes(),
            low=self.low.tobytes(),
            high=self.high.tobytes(),
            count=self.count.tobytes(),
            extras=tuple(values.tobytes() for values in self.extras),
            codes=self.codes.tobytes(),
        )


def unpack(packed: PackedLanes) -> Lanes:
    """The lanes again; ValueError if the parts do not fit each other."""
    made = Lanes(packed.width_s, packed.limit, packed.halves, packed.lanes, len(packed.extras), packed.first)
    parts = (packed.mean, packed.low, packed.high, *packed.extras)
    for floats, data in zip(made._floats(), parts, strict=True):
        floats.frombytes(data)
    made.count.frombytes(packed.count)
    made.codes.frombytes(packed.codes)
    sizes = {len(made.count), len(made.codes), *(len(floats) for floats in made._floats())}
    if len(sizes) != 1 or made.lanes < 1 or sizes.pop() % made.lanes:
        raise ValueError("the parts of a stored series do not fit each other")
    return made


def _means(pairs: list[tuple[float, float, float]]) -> list[float]:
    return [a if not share else b if share == 1 else a + (b - a) * share for a, b, share in pairs]


def _lows(pairs: list[tuple[float, float, float]]) -> list[float]:
    return [a if not share else b if share == 1 else min(a, b) for a, b, share in pairs]


def _highs(pairs: list[tuple[float, float, float]]) -> list[float]:
    return [a if not share else b if share == 1 else max(a, b) for a, b, share in pairs]


def _padded(values: array[T], lanes: int, pad: array[T]) -> array[T]:
    """A copy with `pad` behind the lanes of every bucket."""
    made = values[:0]
    for start in range(0, len(values), lanes):
        made.extend(values[start : start + lanes])
        made.extend(pad)
    return made
