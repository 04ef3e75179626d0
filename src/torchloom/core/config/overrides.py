"""What a change says about a value of a param group: hold another one, scale the script's own, or let it be.

In a change: a plain value holds, `{"scale": 0.5}` multiplies what the script sets at every step, and
`{"own": true}` ends either, so that the script's own value counts again. Scaling never adds up: it is always
of the script's own value. Only words here; the probe applies them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

SCALE = "scale"
OWN = "own"
HOLD = "hold"


@dataclass(frozen=True, slots=True)
class Held:
    """One place where something else holds than the script set."""

    value: object
    """What the newest step used; None while it could not be read."""
    mode: str
    own: object
    """What the script itself has there."""
    factor: float | None = None
    """Of a scaled one."""
    stays: bool = False
    """It is in the param group also between steps, because nothing in the script writes it."""

    def word(self) -> object:
        """As a change would say it."""
        return {SCALE: self.factor} if self.mode == SCALE else self.value


def mode_of(word: object) -> str:
    """What a value in a change means for a param group."""
    if isinstance(word, Mapping):
        if set(word) == {SCALE}:
            return SCALE
        if set(word) == {OWN} and word[OWN] is True:
            return OWN
    return HOLD


def factor_of(word: object) -> float | None:
    """The factor of a scale; None when it makes no sense."""
    factor = word[SCALE] if isinstance(word, Mapping) else None
    if isinstance(factor, str):
        try:
            factor = float(factor)
        except ValueError:
            return None
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        return None
    try:
        return float(factor) if math.isfinite(factor) and factor >= 0 else None
    except OverflowError:  # a whole number that no float can hold
        return None


def in_effect(word: object, own: object) -> object:
    """The value that a step uses where the script has `own`; None when that is not known."""
    mode = mode_of(word)
    if mode == HOLD:
        return word
    if mode == OWN:
        return own
    factor = factor_of(word)
    known = isinstance(own, int | float) and not isinstance(own, bool) and factor is not None
    return own * factor if known else None  # type: ignore[operator]
