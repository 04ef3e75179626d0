"""The kept steps of a board of arrays: step n of every row is in column n % 32. See kept_steps.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from torchloom.core.detect.kept_steps import STEPS_KEPT, StepRing
from torchloom.core.detect.wide import numpy
from torchloom.core.detect.window_numbers import PER_STEP
from torchloom.model.windows import StepTimes

if TYPE_CHECKING:
    from numpy.typing import NDArray


class WideRing(StepRing):
    def __init__(self, count: int) -> None:
        np = numpy()
        self.took = np.zeros((STEPS_KEPT, count), np.int64)
        self.data = np.zeros((STEPS_KEPT, count), np.int64)
        self.wait = np.zeros((STEPS_KEPT, count), np.int64)
        self.numbers = np.full((STEPS_KEPT, 1, count), -1, np.int64)
        """By place of a group, how many collectives a row had made; -1 where it did not use the group."""

    def put(self, row: int, steps: Iterable[StepTimes]) -> None:
        for one in steps:
            at = one.step % STEPS_KEPT
            self.took[at, row], self.data[at, row], self.wait[at, row] = (
                one.step_ns,
                one.data_wait_ns,
                one.wait_ns,
            )
            self._widen(max((place for place, _ in one.made), default=0))
            self.numbers[at, :, row] = -1
            for place, number in one.made:
                self.numbers[at, place, row] = number

    def put_many(self, rows: Any, first: int, numbers: NDArray[Any], places: Sequence[int]) -> None:
        """Of these rows (a slice or places) the steps from the first on: by row, step and number."""
        self._widen(max(places, default=0))
        count = numbers.shape[1]
        done = 0
        while done < count:  # at the end of the ring it goes on at its beginning
            begin = (first + done) % STEPS_KEPT
            size = min(count - done, STEPS_KEPT - begin)
            at, some = slice(begin, begin + size), numbers[:, done : done + size]
            self.took[at, rows], self.data[at, rows], self.wait[at, rows] = some.transpose(2, 1, 0)[:PER_STEP]
            if len(places) < self.numbers.shape[1]:
                self.numbers[at, :, rows] = -1
            for number, place in enumerate(places, PER_STEP):
                self.numbers[at, place, rows] = some[:, :, number].T
            done += size

    def _widen(self, place: int) -> None:
        steps, places, count = self.numbers.shape
        if place >= places:
            more = numpy().full((steps, place + 1 - places, count), -1, numpy().int64)
            self.numbers = numpy().concatenate((self.numbers, more), axis=1)

    def made_by(self, step: int) -> list[tuple[tuple[int, int], ...]]:
        columns = self.numbers[step % STEPS_KEPT].T.tolist()
        return [tuple((place, one) for place, one in enumerate(row) if one >= 0) for row in columns]

    def steps(self, row: int, steps: range) -> list[StepTimes]:
        """Some steps of one row."""
        at = [step % STEPS_KEPT for step in steps]
        times = zip(
            steps,
            self.took[at, row].tolist(),
            self.data[at, row].tolist(),
            self.wait[at, row].tolist(),
            self.numbers[at, :, row].tolist(),
            strict=True,
        )
        return [
            StepTimes(step, took, data, wait, tuple([pair for pair in enumerate(made) if pair[1] >= 0]))
            for step, took, data, wait, made in times
        ]


class RingSteps(Sequence[StepTimes]):
    """The steps of one row, made when they are asked for."""

    __slots__ = ("_first", "_last", "_ring", "_row")

    def __init__(self, ring: WideRing, row: int, first: int, last: int) -> None:
        self._ring, self._row, self._first, self._last = ring, row, first, last

    def __len__(self) -> int:
        return self._last - self._first + 1

    def __iter__(self) -> Iterator[StepTimes]:
        return iter(self._ring.steps(self._row, range(self._first, self._last + 1)))

    @overload
    def __getitem__(self, place: int) -> StepTimes: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[StepTimes]: ...
    def __getitem__(self, place: int | slice) -> StepTimes | Sequence[StepTimes]:
        steps = range(self._first, self._last + 1)[place]
        if isinstance(steps, range):
            return self._ring.steps(self._row, steps)
        return self._ring.steps(self._row, range(steps, steps + 1))[0]
