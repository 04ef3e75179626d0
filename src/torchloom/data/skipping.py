"""Samples that a training leaves out: named by their places in the order of an epoch. No torch, no reading.

    0:1280-1536,2:0-256      epoch 0, places 1280 to before 1536; epoch 2, places 0 to before 256

Places do not depend on the number of ranks or on the batch, so the same text means the same samples after a
restart, a resize or a change of the batch. Also keeps which places the last steps were made of, so that "the
batch of step 4711" can be named when somebody wants it left out.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from torchloom.data import live
from torchloom.errors import UsageError

REMEMBERED = 4096
"""Batches whose places are known."""
MOST = 400
"""Runs of samples that may be left out: the text travels in mail."""
_RUN = re.compile(r"(\d{1,9}):(\d{1,18})-(\d{1,18})")


class SkippedRun(NamedTuple):
    """Places `start` to before `stop` of an epoch."""

    epoch: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.start}-{self.stop}"


class Skips:
    """What one loader leaves out, as a setting (data/live.py)."""

    def __init__(self) -> None:
        self.runs: tuple[SkippedRun, ...] = ()
        self._is_set = False
        self._taken: deque[tuple[int, Callable[[], Iterable[SkippedRun]]]] = deque(maxlen=REMEMBERED)

    def get(self) -> str:
        return ",".join(map(str, self.runs))

    def set(self, value: str) -> None:
        self.runs, self._is_set = parse(value), True

    def adopt(self, value: str) -> None:
        """What a state says was left out, unless somebody has said anything here: then that holds, and an
        older state does not take it back."""
        if not self._is_set and not self.runs:
            self.runs = parse(value)

    def check(self, value: str) -> None:
        parse(value)

    def of(self, epoch: int) -> tuple[tuple[int, int], ...]:
        """What is left out of an epoch, in order."""
        return tuple((run.start, run.stop) for run in self.runs if run.epoch == epoch)

    def note(self, epoch: int, start: int, stop: int) -> None:
        """The training loop has taken this batch, for the step that is made next."""
        self.note_that(partial(_run_of, epoch, start, stop))

    def note_that(self, batch: Callable[[], Iterable[SkippedRun]]) -> None:
        """The same for a batch whose places are many, and looked up only when somebody asks."""
        self._taken.append((live.completed_steps() + 1, batch))

    def with_steps(self, first: int, last: int) -> str:
        """The setting that leaves out the batches of these steps (counted as the loop makes them) as well;
        as it is when that would be more than can be named."""
        found = [run for step, batch in self._taken if first <= step <= last for run in batch()]
        together = merged([*self.runs, *found])
        return ",".join(map(str, together)) if len(together) <= MOST else self.get()


def _run_of(epoch: int, start: int, stop: int) -> tuple[SkippedRun]:
    return (SkippedRun(epoch, start, stop),)


def parse(text: str) -> tuple[SkippedRun, ...]:
    """Raises UsageError for what names no samples."""
    runs = []
    for part in [part.strip() for part in text.split(",") if part.strip()]:
        found = _RUN.fullmatch(part)
        if found is None or int(found[2]) >= int(found[3]):
            raise UsageError(f"{part[:60]!r} names no samples", hint="write EPOCH:FIRST-END, as 0:1280-1536")
        runs.append(SkippedRun(*map(int, found.groups())))
    together = merged(runs)
    if len(together) > MOST:
        raise UsageError(f"{len(together)} runs of samples are too many to leave out", hint=f"at most {MOST}")
    return together


def merged(runs: list[SkippedRun]) -> tuple[SkippedRun, ...]:
    """In order, and what touches is one run."""
    joined: list[SkippedRun] = []
    for run in sorted(runs):
        last = joined[-1] if joined else None
        if last is not None and last.epoch == run.epoch and run.start <= last.stop:
            joined[-1] = SkippedRun(last.epoch, last.start, max(last.stop, run.stop))
        else:
            joined.append(run)
    return tuple(joined)
