"""Timers: what the core wants to be woken for, and when."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class TimerKind(StrEnum):
    """What a timer is for; core/reducer.py has what follows when it fires."""

    STEER = "steer"
    BACKOFF = "backoff"
    STOP_AGAIN = "stop-again"
    STOP_BOUNDARY = "stop-boundary"
    SHRINK = "shrink"
    SAVE_AGAIN = "save-again"
    SAVE_FIRST = "save-first"
    TAKE_BACK = "take-back"


class Timer(Struct, frozen=True, kw_only=True):
    id: str
    kind: TimerKind
    at_ns: int
    job: str
