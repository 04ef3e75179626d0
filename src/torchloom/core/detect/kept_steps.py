"""What stays of the windows before the newest ones: steps, also as columns over all ranks, and hashes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from torchloom.model.windows import PartHash, StepTimes

STEPS_KEPT = 32
HASHES_KEPT = 64


class StepRing:
    """The kept steps of rows without gaps as columns: step n of every row is in column n % 32."""

    own: Any
    took: Any
    data: Any
    """By step and row. Arrays on a board of arrays (wide_steps.py)."""

    def __init__(self, count: int) -> None:
        zeros = bytes(8 * count)
        self.own = [array("q", zeros) for _ in range(STEPS_KEPT)]
        self.took = [array("q", zeros) for _ in range(STEPS_KEPT)]
        self.data = [array("q", zeros) for _ in range(STEPS_KEPT)]
        self.made: list[list[tuple[tuple[int, int], ...]]] = [[()] * count for _ in range(STEPS_KEPT)]

    def put(self, row: int, steps: Iterable[StepTimes]) -> None:
        for one in steps:
            at, took = one.step % STEPS_KEPT, one.step_ns
            own = took - one.wait_ns
            self.own[at][row] = own if own > 0 else 1
            self.took[at][row] = took
            self.data[at][row] = one.data_wait_ns
            self.made[at][row] = one.made


def joined_steps(kept: Sequence[StepTimes], fresh: Sequence[StepTimes]) -> Sequence[StepTimes]:
    """Windows carry what is new: the steps before it are still worth looking at."""
    if not fresh:
        return kept
    first = fresh[0].step
    return [*(s for s in kept if s.step < first), *fresh][-STEPS_KEPT:]


def joined_hashes(known: tuple[PartHash, ...], fresh: tuple[PartHash, ...]) -> tuple[PartHash, ...]:
    """The same for hashes: ranks are looked at at different times, and only equal steps can be compared."""
    if not fresh or known[-len(fresh) :] == fresh:
        return known
    if known and (known[-1].step, known[-1].part) < (fresh[0].step, fresh[0].part):
        return (known + fresh)[-HASHES_KEPT:]
    new = {(h.step, h.part) for h in fresh}
    kept = [h for h in known if (h.step, h.part) not in new]
    return tuple(sorted([*kept, *fresh], key=lambda h: (h.step, h.part)))[-HASHES_KEPT:]
