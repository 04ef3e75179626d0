"""When a log had which size: lines carry no time of their own. `since` and each line's time come from it.

Beside each log lies a small file of pairs (wall time, size), one for each look that found the log grown. It
outlives the agent, and its older half is thinned when it is full: the past gets coarser, never lost. It owns
no line of a log.
"""

from __future__ import annotations

import logging
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

MOST_ENTRIES = 16384
"""256 KiB a rank: the newest 8,192 looks at full resolution, all before at coarser ones."""
MOST_MARKS = 2048
"""Times that go with one piece of a log: they must leave room for the piece in a message."""
_ENTRY = struct.Struct("<QQ")
_LONGEST_LINE_BACK = 64 << 10


def times_file(path: Path) -> Path:
    return path.with_name(path.name + ".times")


def note(path: Path, clock: Callable[[], int] = time.time_ns) -> None:
    """Remember the size of a log if it has grown since the last time.

    A full disk costs resolution, nothing else.
    """
    try:
        size = os.stat(path).st_size
        now_ns = clock()  # after the look, so that all of that size was there by then
        descriptor = os.open(times_file(path), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        held = os.fstat(descriptor).st_size
        if held % _ENTRY.size:  # the disk was full in the middle of an entry
            held -= held % _ENTRY.size
            os.ftruncate(descriptor, held)
        if held:
            _, last_size = _ENTRY.unpack(os.pread(descriptor, _ENTRY.size, held - _ENTRY.size))
            if size <= last_size:
                return
        os.write(descriptor, _ENTRY.pack(now_ns, size))
        if held // _ENTRY.size >= MOST_ENTRIES:
            _thin(times_file(path))
    except OSError as error:
        log.info("%s has no times now: %s", path, error.strerror)
    finally:
        os.close(descriptor)


def place(path: Path, since_ns: int) -> int:
    """Where to begin so that nothing printed at `since_ns` or later is missing; at the start of a line.

    That is the size at the last look before: what was printed between that look and `since_ns` comes too.
    """
    found = 0
    for at_ns, size in _entries(times_file(path)):
        if at_ns >= since_ns:  # the first such one ends it: a clock that was set back shows more, never less
            break
        found = size
    return _line_start(path, found)


def marks(path: Path, begin: int, end: int) -> list[tuple[int, int]]:
    """Pairs (offset, wall time) in order: what lies before an offset, and after the pair before, was there
    by that time. They cover `begin` to `end`, or as much of it as there are times for."""
    try:
        descriptor = os.open(times_file(path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        held = os.fstat(descriptor).st_size // _ENTRY.size
        low = _first_beyond(descriptor, begin, held)
        high = min(held, _first_beyond(descriptor, end - 1, held) + 1)
        data = os.pread(descriptor, (high - low) * _ENTRY.size, low * _ENTRY.size)
    except OSError:
        return []
    finally:
        os.close(descriptor)
    found = [
        (size, at_ns) for at_ns, size in _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size])
    ]
    if len(found) > MOST_MARKS:  # coarser: each kept pair stands for those before it
        step = -(-len(found) // MOST_MARKS)
        found = found[::-1][::step][::-1]
    return found


def _first_beyond(descriptor: int, offset: int, held: int) -> int:
    """The number of the first entry whose size is above `offset`."""
    low, high = 0, held
    while low < high:
        middle = (low + high) // 2
        _, size = _ENTRY.unpack(os.pread(descriptor, _ENTRY.size, middle * _ENTRY.size))
        if size > offset:
            high = middle
        else:
            low = middle + 1
    return low


def _entries(path: Path) -> list[tuple[int, int]]:
    try:
        data = path.read_bytes()
    except OSError:
        return []
    return list(_ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]))


def _thin(path: Path) -> None:
    """Drop every second entry of the older half."""
    entries = _entries(path)
    half = len(entries) // 2
    kept = entries[:half:2] + entries[half:]
    draft = path.with_name(path.name + ".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(b"".join(_ENTRY.pack(*entry) for entry in kept))
    draft.replace(path)


def _line_start(path: Path, offset: int) -> int:
    """The start of the line that was being written there: it was not finished before."""
    if offset == 0:
        return 0
    begin = max(0, offset - _LONGEST_LINE_BACK)
    try:
        with path.open("rb") as file:
            file.seek(begin)
            before = file.read(offset - begin)
    except OSError:
        return offset
    newline = before.rfind(b"\n")
    if newline < 0:
        return begin if begin == 0 else offset
    return begin + newline + 1
