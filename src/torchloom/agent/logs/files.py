"""Workers' log files: mark a start, read pieces, keep them from filling the disk.

A log is one append-only file per rank over all generations. Its oldest part is dropped by punching a hole, so
that the writer notices nothing and offsets keep their meaning. Nobody reads a pipe here.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
from pathlib import Path

from torchloom.model.messages import LogPiece
from torchloom.wire.start_line import StartLine

log = logging.getLogger(__name__)

DEFAULT_LIMIT = 64 << 20
MOST_BYTES = 960 << 10
"""Longest piece that is sent at once: a message holds 1 MiB."""
MOST_UNFINISHED = 4 << 10
"""Of a line that is still being written: more than the newest state of any progress bar."""
_BLOCK = 4096
_KEEP_SIZE_AND_PUNCH = 0x01 | 0x02
_TAIL_BYTES = 16 << 10
_LONGEST_LINE = 500

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def mark_start(path: Path, line: StartLine) -> None:
    """Write that a process begins here. A full disk costs this line, nothing else."""
    write_line(path, str(line))


def write_line(path: Path, line: str) -> None:
    """Write one line of our own, starting on a new line."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error.strerror)
        return
    try:
        size = os.fstat(descriptor).st_size
        broken_off = size > 0 and os.pread(descriptor, 1, size - 1) not in (b"\n", b"\0")
        os.write(descriptor, (("\n" if broken_off else "") + f"{line}\n").encode())
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error.strerror)
    finally:
        os.close(descriptor)


def read_piece(path: Path, offset: int, max_bytes: int, ended: bool) -> LogPiece:
    """A piece of whole lines from `offset`, or from `-offset` lines before the end.

    While the worker runs a line that is still being written is held back; one longer than a piece comes in
    parts. A file that is not there is an empty log.
    """
    most = max(1, min(max_bytes, MOST_BYTES))
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return LogPiece(b"", max(0, offset), max(0, offset), ended=ended)
    try:
        size = os.fstat(descriptor).st_size
        begin = _first_byte(descriptor, size)
        if offset < 0:
            return _last_lines(descriptor, -offset, begin, size, most, ended)
        return _from(descriptor, offset, begin, size, most, ended)
    except OSError as error:
        log.warning("%s cannot be read: %s", path, error.strerror)
        return LogPiece(b"", max(0, offset), max(0, offset), ended=ended)
    finally:
        os.close(descriptor)


def _first_byte(descriptor: int, size: int) -> int:
    """Where the log begins: what is before is a hole."""
    if size == 0:
        return 0
    try:
        return os.lseek(descriptor, 0, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole
            return size
        return 0


def _from(descriptor: int, offset: int, begin: int, size: int, most: int, ended: bool) -> LogPiece:
    start, lost = min(offset, size), 0
    if start < begin:
        start = _first_line(descriptor, begin, size)
        lost = start - offset
    data = os.pread(descriptor, most, start)
    if start + len(data) < size or not ended:
        whole = data.rfind(b"\n") + 1
        if whole or len(data) < most:
            data = data[:whole]
    return LogPiece(data, start, start + len(data), lost, ended and start + len(data) >= size)


def _first_line(descriptor: int, begin: int, size: int) -> int:
    """Where the first whole line after a hole begins: the cut fell into a line, or left NULs before one."""
    data = os.pread(descriptor, MOST_BYTES, begin)
    nulls = len(data) - len(data.lstrip(b"\0"))
    return min(size, begin + (nulls or data.find(b"\n") + 1))


def _last_lines(descriptor: int, lines: int, begin: int, size: int, most: int, ended: bool) -> LogPiece:
    start = max(_first_line(descriptor, begin, size) if begin else 0, size - most)
    data = os.pread(descriptor, size - start, start)
    if not ended:
        data = data[: data.rfind(b"\n") + 1]
    if start > 0 and os.pread(descriptor, 1, start - 1) not in (b"\n", b"\0"):  # the end of a line only
        cut = data.find(b"\n") + 1
        start, data = start + cut, data[cut:]
    wanted = b"".join(data.splitlines(keepends=True)[-lines:])
    start += len(data) - len(wanted)
    return LogPiece(wanted, start, start + len(wanted), 0, ended)


def unfinished(path: Path, offset: int) -> bytes:
    """The end of the line that begins at or after `offset` and has no end yet; empty if all lines have."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        begin = max(offset, os.fstat(descriptor).st_size - MOST_UNFINISHED)
        data = os.pread(descriptor, MOST_UNFINISHED, begin)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    # A line that was finished since the piece was read is the next piece.
    return b"" if b"\n" in data else data.lstrip(b"\0")


def tail(path: Path, lines: int = 20) -> tuple[str, ...]:
    """The last lines as text, each of bounded length; none when there is no log."""
    piece = read_piece(path, -lines, _TAIL_BYTES, ended=True)
    text = piece.data.decode("utf-8", "replace")
    return tuple(line[:_LONGEST_LINE] for line in text.splitlines())


def size(path: Path) -> int:
    """Bytes that were ever written; 0 when there is no log."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def bound(path: Path, limit: int) -> int:
    """Free the oldest part of a log that takes more than `limit` bytes of disk; returns its new beginning."""
    try:
        status = os.stat(path)
    except OSError:
        return 0
    if status.st_blocks * 512 <= limit:
        return 0
    keep_from = (status.st_size - limit * 3 // 4) // _BLOCK * _BLOCK
    if keep_from <= 0:
        return 0
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        if _libc.fallocate(descriptor, _KEEP_SIZE_AND_PUNCH, 0, keep_from) != 0:
            _drop_all(descriptor, path, ctypes.get_errno())
        return keep_from
    finally:
        os.close(descriptor)


def _drop_all(descriptor: int, path: Path, number: int) -> None:
    """Where holes cannot be punched (some network file systems) a full disk is worse than a lost log.

    The writer appends, so it goes on at the new end: the whole file becomes one hole of the same length.
    """
    log.warning("%s: holes cannot be punched here (%s); the whole log is dropped", path, os.strerror(number))
    size = os.fstat(descriptor).st_size
    os.ftruncate(descriptor, 0)
    os.ftruncate(descriptor, size)
