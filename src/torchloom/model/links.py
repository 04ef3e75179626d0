"""What was measured of the links between the ranks of a job. Records, no behaviour."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class LinkDelay(Struct, frozen=True, array_like=True):
    """One direction of one pair of ranks."""

    sender: int
    receiver: int
    delay_s: float
    """Of a small message, one way."""
    transfer_s: float
    """Of a megabyte, until the receiver has said that it has it."""


class LinkMatrix(Struct, frozen=True, kw_only=True):
    """One measurement of all pairs, or in a large job of as many as were chosen."""

    source: Literal["probe", "training"] = "probe"
    """`training`: what the job's own sends and receives took."""
    operation: str = ""
    generation: int
    at_ns: int
    at_step: int | None = None
    delays: tuple[LinkDelay, ...]
    silent: dict[int, str] = {}
    """Ranks that measured nothing, and why."""
    verdict: str
    """Which link, sender or receiver stands out, or that none does."""
