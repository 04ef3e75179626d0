"""This host's clock for deadlines and spans that somebody else must be able to rely on.

It goes on while the host is suspended, and nobody sets it. It is the same for all processes of a host and
says nothing about another one's. The probe reads it by itself (probe/observe/steps.py), once a step.
"""

from __future__ import annotations

import time


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
