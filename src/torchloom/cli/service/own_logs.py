"""Keeps the logs of our own parts from growing without end: rotated while they are written, repeats left out.

A part's log is its stderr, appended to a file. So the file is copied and cut, and the writer notices nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from pathlib import Path

LIMIT_BYTES = 8 * 1024 * 1024
"""A larger log is set aside; one older log is kept."""
ALIKE_A_MINUTE = 20
"""So many records of one kind are written in a minute; how many more there were is written after it."""
_MINUTE_S = 60.0


def rotate(directory: Path, limit: int = LIMIT_BYTES) -> None:
    """Set aside every log here that has grown too large. A full disk costs the old log, not the part."""
    for log in sorted(directory.glob("*.log")):
        with contextlib.suppress(OSError):
            if log.lstat().st_size > limit:
                old = log.with_name(f"{log.name}.1")
                with contextlib.suppress(OSError):
                    shutil.copyfile(log, old)
                    old.chmod(0o600)
                os.truncate(log, 0)  # whoever appends goes on at the new end


class Throttle(logging.Filter):
    """Lets through a bounded number of records of one kind a minute: of one logger, level and line."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, int, str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = (record.name, record.levelno, record.pathname, record.lineno)
        now_s = time.monotonic()
        since_s, count = self._seen.get(kind, (now_s, 0))
        if now_s - since_s >= _MINUTE_S:
            left_out = count - ALIKE_A_MINUTE
            if left_out > 0:
                record.msg = f"{record.getMessage()} ({left_out} more like this were left out)"
                record.args = ()
            since_s, count = now_s, 0
        self._seen[kind] = (since_s, count + 1)
        return count < ALIKE_A_MINUTE
