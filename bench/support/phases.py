"""Where the blocking time of a save goes: the phases of Saver.take, timed from outside.

Owns the list of phases. A phase that is timed is wrapped, which takes about a microsecond each time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torchloom.checkpoint.saving import saver
from torchloom.checkpoint.state import rng, staging, training_parts
from torchloom.checkpoint.state.image import Image
from torchloom.checkpoint.state.planning import Planner

PHASES: tuple[tuple[Any, str, str], ...] = (
    (saver.Saver, "take", "blocked"),
    (training_parts.Component, "state", "state_dict()"),
    (rng, "take", "random generators"),
    (Planner, "plan", "plan"),
    (staging.Staging, "look", "sealing of the last"),
    (staging.Staging, "_slot", "choice of a slot"),
    (Image, "copy_into", "copy"),
    (saver, "facts_of", "facts"),
    (saver.Writer, "start", "start of the writer"),
    (staging.Staging, "go_on", "start of the rest"),
)
BLOCKED = PHASES[0][2]


class Phases:
    """The phases of the quickest save that was noted."""

    def __init__(self, on: bool) -> None:
        self._on = on
        self._now: dict[str, tuple[float, float]] = {}
        self._best: dict[str, tuple[float, float]] = {}
        if on:
            for owner, name, label in PHASES:
                self._wrap(owner, name, label)

    @contextmanager
    def noted(self) -> Iterator[None]:
        self._now.clear()
        yield
        if BLOCKED in self._now and self._now[BLOCKED] < self._best.get(BLOCKED, (float("inf"), 0.0)):
            self._best = dict(self._now)

    def print(self, title: str) -> None:
        """On stderr, and forget them."""
        if not self._best:
            return
        blocked, cpu = self._best[BLOCKED]
        parts = {label: took for label, took in self._best.items() if label != BLOCKED}
        rest = blocked - sum(t[0] for t in parts.values()), cpu - sum(t[1] for t in parts.values())
        told = sorted(parts.items(), key=lambda part: -part[1][0])
        for label, (seconds, busy) in [(BLOCKED, (blocked, cpu)), *told, ("the rest", rest)]:
            took = f"{seconds * 1e3:6.2f} ms, {busy * 1e3:6.2f} ms of its thread's CPU"
            print(f"phases, {title}: {label:20} {took}", file=sys.stderr)
        self._best = {}

    def _wrap(self, owner: Any, name: str, label: str) -> None:
        call = getattr(owner, name)

        def timed(*args: Any, **options: Any) -> Any:
            began, cpu = time.perf_counter(), time.thread_time()
            try:
                return call(*args, **options)
            finally:
                before = self._now.get(label, (0.0, 0.0))
                took = time.perf_counter() - began, time.thread_time() - cpu
                self._now[label] = before[0] + took[0], before[1] + took[1]

        setattr(owner, name, timed)
