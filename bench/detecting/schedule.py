"""Many runs in bounded time: several at once where load does not matter, and none that would end too late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from support.table import progress
from torchloom.client import Client, Endpoint

START_S = 10.0
"""What a job takes until its fault, on a machine that has time."""

SHORT_S = 20.0


@dataclass(frozen=True)
class Planned:
    """One run: what it is called, how long it takes if all is well, and what it does."""

    name: str
    takes_s: float
    alone: bool
    """It compares times of ranks: nothing else may run beside it."""
    do: Callable[[Client], None]


@dataclass
class Budget:
    """Seconds in which all runs must begin and, if all is well, end. 0: any number."""

    seconds: float
    _began: float = field(default_factory=time.monotonic)

    def left_s(self) -> float:
        return self.seconds - (time.monotonic() - self._began) if self.seconds else float("inf")


def perform(planned: Sequence[Planned], at_once: int, budget: Budget) -> None:
    """The short ones side by side, those that need the machine alone, then the long ones side by side. What
    did not fit is listed."""
    left_out: list[str] = []
    lock = threading.Lock()

    def one(run: Planned) -> None:
        if START_S + run.takes_s > budget.left_s():
            with lock:
                left_out.append(run.name)
            return
        with Client(Endpoint.find()) as client:
            run.do(client)

    beside = [run for run in planned if not run.alone and at_once > 1]
    with ThreadPoolExecutor(max(1, at_once)) as pool:
        list(pool.map(one, [run for run in beside if run.takes_s <= SHORT_S]))
        for run in planned:
            if run.alone or at_once <= 1:
                one(run)
        list(pool.map(one, [run for run in beside if run.takes_s > SHORT_S]))
    if left_out:
        progress(f"left out for lack of time ({len(left_out)} of {len(planned)}): {', '.join(left_out)}")
