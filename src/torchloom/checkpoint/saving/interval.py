"""When to save: every so many steps, every so many seconds, or as often as a stated share of the time allows.

Owns the arithmetic. Pure: times are passed in. The cost of a save is the time the training loop was blocked
plus the CPU time that writing took beside it, because on a busy host that is taken from the training too.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from torchloom.errors import UsageError

SHARE = 0.01
"""`every="auto"`: what saving may cost, as a share of the time."""
_UNITS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|m|min|h)")
_FORGET = 0.2
"""Weight of the newest measurement in the running means."""


@dataclass(frozen=True, slots=True)
class Every:
    """Exactly one of the three is set."""

    steps: int = 0
    seconds: float = 0.0
    share: float = 0.0


def parse_every(every: object) -> Every:
    """`100`, `"10s"`, `"2min"`, `"auto"`. Raises UsageError."""
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        return Every(steps=every)
    if isinstance(every, str):
        text = every.strip().lower()
        if text == "auto":
            return Every(share=SHARE)
        if text.isdecimal() and int(text) > 0:
            return Every(steps=int(text))
        found = _TIME.fullmatch(text)
        if found and float(found[1]) > 0:
            return Every(seconds=float(found[1]) * _UNITS[found[2]])
    raise UsageError(f"every={every!r} is not an interval", hint='give steps (100), a time ("10s") or "auto"')


class SavePace:
    """Turns an interval into a number of steps, from what steps and saves have taken so far."""

    def __init__(self, every: Every) -> None:
        self.every = every
        self._step_s: float | None = None
        self._cost_s: float | None = None

    def took_step(self, seconds: float) -> None:
        self._step_s = _mean(self._step_s, seconds)

    def took_save(self, blocked_s: float, beside_s: float) -> None:
        self._cost_s = _mean(self._cost_s, blocked_s + beside_s)

    @property
    def steps(self) -> int:
        """How many steps to the next save."""
        if self.every.steps:
            return self.every.steps
        if not self._step_s:
            return 1
        if self.every.seconds:
            return max(1, round(self.every.seconds / self._step_s))
        if self._cost_s is None:
            return 1
        return max(1, math.ceil(self._cost_s / (self.every.share * self._step_s)))

    def due_after(self, step: int) -> int:
        """The next step to save at: a multiple of the interval where it is a number of steps."""
        if self.every.steps:
            return (step // self.every.steps + 1) * self.every.steps
        return step + self.steps


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + _FORGET * (new - old)
