"""Waiting until a machine is calm."""

from __future__ import annotations

import time

import psutil

CALM_WITHIN_S, BUSY_PERCENT = 3.0, 15.0


def calm() -> None:
    """Wait for what the save before has left to others: a store on this machine writes on for a while, and
    takes cores that a store elsewhere would not. Not for long, because the machine may be busy anyhow."""
    until = time.monotonic() + CALM_WITHIN_S
    while time.monotonic() < until and psutil.cpu_percent(0.2) > BUSY_PERCENT:
        pass
