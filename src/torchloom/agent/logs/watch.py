"""Notes when logs grow as soon as they grow, so that lines of several ranks can be ordered by time.

The kernel reports the next write to a log once (inotify, one shot); after that the log is not watched for a
moment, and whatever was written meanwhile gets the time of the next look. A worker that prints without pause
therefore costs it nothing, and us at most 50 looks a second. Where inotify is missing, the look of each
heartbeat remains. It owns no line and no time: `times` keeps those.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import struct
from pathlib import Path

from torchloom.agent.logs import times

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.02
"""Shortest time between two looks at one log, for up to `_LOGS_AT_FULL_RATE` logs."""
_LOGS_AT_FULL_RATE = 8
_IN_MODIFY, _IN_ONESHOT = 0x2, 0x80000000
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_HEAD = struct.Struct("iIII")

_libc = ctypes.CDLL(None, use_errno=True)


class LogWatch:
    """Belongs to one event loop. `follow` and `forget` may be called any number of times."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._logs: dict[Path, int] = {}
        """The watch of each log; -1 between a look and the next watch."""
        self._timers: dict[Path, asyncio.TimerHandle] = {}
        self._failed = False

    def follow(self, path: Path) -> None:
        """Note this log's growth from now on; also looks at it now."""
        if path in self._logs or self._failed:
            return
        if self._descriptor < 0 and not self._open():
            return
        self._logs[path] = -1
        self._watch(path)

    def forget(self, path: Path) -> None:
        timer = self._timers.pop(path, None)
        if timer is not None:
            timer.cancel()
        number = self._logs.pop(path, -1)
        if number >= 0:
            _libc.inotify_rm_watch(self._descriptor, number)  # fails if it has fired: nothing to remove

    def close(self) -> None:
        for path in list(self._logs):
            self.forget(path)
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> bool:
        self._descriptor = _libc.inotify_init1(_FLAGS)
        if self._descriptor < 0:
            self._give_up()
            return False
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        return True

    def _give_up(self) -> None:
        why = os.strerror(ctypes.get_errno())
        log.warning("log lines have times of a quarter of a second: inotify is not available (%s)", why)
        self._failed = True

    def _watch(self, path: Path) -> None:
        """Watch for the next write, then look: what was written before the watch is found by the look."""
        self._timers.pop(path, None)
        if path not in self._logs:
            return
        mask = ctypes.c_uint32(_IN_MODIFY | _IN_ONESHOT)
        number = _libc.inotify_add_watch(self._descriptor, os.fsencode(path), mask)
        if number < 0:
            del self._logs[path]  # it is gone, or there are too many watches: a heartbeat tries again
            return
        self._logs[path] = number
        times.note(path)

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:
            return
        fired, place = set(), 0
        while place + _HEAD.size <= len(data):
            number, _, _, length = _HEAD.unpack_from(data, place)
            fired.add(number)
            place += _HEAD.size + length
        for path, number in list(self._logs.items()):
            if number in fired:
                self._look(path)

    def _look(self, path: Path) -> None:
        self._logs[path] = -1
        times.note(path)
        if path not in self._timers:
            pause_s = LOOK_EVERY_S * max(1.0, len(self._logs) / _LOGS_AT_FULL_RATE)
            loop = asyncio.get_running_loop()
            self._timers[path] = loop.call_later(pause_s, self._watch, path)
