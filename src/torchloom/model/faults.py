"""A fault that somebody injects on purpose, so that detection and recovery can be tried and measured.

A record; what may be asked for is in core/injection.py.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

FaultKind = Literal[
    "kill",
    "stop",
    "contention",
    "cpu-quota",
    "exit",
    "hang",
    "gil-hold",
    "slow",
    "data-slow",
    "nan",
    "gradient",
    "bit-flip",
    "mismatch",
    "skip",
    "deadlock",
    "memory",
    "disk-full",
    "device-error",
    "checkpoint-damage",
    "slow-link",
    "slow-sender",
    "slow-receiver",
    "partition",
    "agent-kill",
    "weaver-kill",
    "nats-kill",
]
FaultPlace = Literal["step", "data", "backward"]


class Fault(Struct, frozen=True, kw_only=True):
    """The fault to inject. The record that carries it names the workers."""

    kind: FaultKind
    amount: float | None = None
    """A factor, a code, a size …: see core/injection.py. None: the kind's own default."""
    duration_s: float = 0.0
    """How long it lasts; 0: until the worker ends, or once for a momentary fault."""
    at_step: int | None = None
    """Before which step of the present generation a worker does it to itself; None: the next one."""
    where: FaultPlace = "step"
    """Where a hang happens: at the boundary, in the data loader, or in the middle of the backward pass."""
    seed: int = 0
    """Chooses the parameter and the bit that are hit."""
    peer: int | None = None
    """Of a slow link: the rank at its other end, to which the ranks hit send slowly."""
