"""Effective training time of a large fleet, from published failures and measured times. Pure; seeds go in.

A run is a Poisson process of interruptions. Each has a cause, a cause shows itself in one of three ways, and
each launcher needs its own time to notice that and to train again. Work since the newest checkpoint is lost.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Literal

Shows = Literal["crash", "hang", "host"]
DAY_S = 86_400.0

LLAMA3_RANKS, LLAMA3_DAYS = 16_384, 54
LLAMA3: tuple[tuple[str, int, Shows], ...] = (
    ("faulty GPU", 148, "crash"),
    ("HBM3 memory", 72, "crash"),
    ("software bug", 54, "crash"),
    ("network switch or cable", 35, "hang"),
    ("host maintenance", 32, "host"),
    ("GPU SRAM", 19, "crash"),
    ("GPU system processor", 17, "crash"),
    ("NIC", 7, "hang"),
    ("NCCL watchdog timeout", 7, "hang"),
    ("silent data corruption", 6, "crash"),
    ("GPU thermal interface or sensor", 6, "crash"),
    ("SSD", 3, "host"),
    ("power supply", 3, "host"),
    ("server chassis", 2, "host"),
    ("IO expansion board", 2, "host"),
    ("dependency", 2, "crash"),
    ("CPU", 2, "host"),
    ("system memory", 2, "host"),
)
"""Unexpected interruptions of the 405B run and their counts, table 5 of "The Llama 3 Herd of Models" (arXiv
2407.21783). How each shows itself is our assumption."""


@dataclass(frozen=True)
class Launcher:
    """What one launcher needs, in seconds."""

    name: str
    notice_s: dict[Shows, float]
    restart_s: float
    """From noticing to the first step, without reading a checkpoint."""
    recovered_share: float
    """Of the tries that train again at all."""
    failed_try_s: float
    """What a try costs that does not."""
    restore_s: float
    save_blocks_s: float


@dataclass(frozen=True)
class FleetRun:
    """What is assumed about the run; the same for every launcher."""

    ranks: int = LLAMA3_RANKS
    days: float = LLAMA3_DAYS
    save_every_s: float = 600.0
    start_s: float = 120.0
    """What a start of this size takes besides, whoever starts it: communicators, compiling, warm caches."""
    scale: float = 1.0
    """Failures, as a multiple of the published rate per rank and day."""


@dataclass(frozen=True)
class Lost:
    """Seconds of one run in which it did not make progress that lasts."""

    interruptions: int
    notice_s: float
    restart_s: float
    repeated_s: float
    saving_s: float
    causes: dict[str, int]

    @property
    def total_s(self) -> float:
        return self.notice_s + self.restart_s + self.repeated_s + self.saving_s

    def effective(self, days: float) -> float:
        return max(0.0, 1 - self.total_s / (days * DAY_S))


def rate_per_s(run: FleetRun) -> float:
    """Interruptions of the whole fleet per second."""
    published = sum(count for _, count, _ in LLAMA3)
    return published / (LLAMA3_DAYS * DAY_S) * run.ranks / LLAMA3_RANKS * run.scale


def simulate(run: FleetRun, launcher: Launcher, seed: int) -> Lost:
    """One run. Interruptions and causes depend on the seed alone, so that launchers meet the same ones; a
    failure while the job is down or starting costs nothing more."""
    events, tries = random.Random(f"events {seed}"), random.Random(f"tries {seed}")
    names, counts = [name for name, _, _ in LLAMA3], [count for _, count, _ in LLAMA3]
    shows = {name: how for name, _, how in LLAMA3}
    end_s, rate = run.days * DAY_S, rate_per_s(run)
    at_s = up_s = notice_s = restart_s = repeated_s = 0.0
    causes: Counter[str] = Counter()
    while rate:
        at_s += events.expovariate(rate)
        cause = events.choices(names, counts)[0]
        since_save_s = events.random() * run.save_every_s
        if at_s >= end_s:
            break
        if at_s < up_s:
            continue
        causes[cause] += 1
        noticed_s = launcher.notice_s[shows[cause]]
        again_s = launcher.restore_s + launcher.restart_s + run.start_s
        while tries.random() >= launcher.recovered_share:
            again_s += launcher.failed_try_s
        notice_s, restart_s = notice_s + noticed_s, restart_s + again_s
        repeated_s += min(since_save_s, at_s - up_s)
        up_s = at_s + noticed_s + again_s
    trained_s = max(0.0, end_s - notice_s - restart_s)
    saving_s = trained_s / run.save_every_s * launcher.save_blocks_s
    return Lost(sum(causes.values()), notice_s, restart_s, repeated_s, saving_s, dict(causes))
