"""stdout and stderr of a worker: a full disk or a broken log file costs lines, never the training run.

Python raises OSError from print() when the file below has no room, and ends with status 120 when the last
flush fails. `guard()` rebuilds the two streams over the same descriptors with a raw file that drops such
writes and counts them; all else about the streams stays as Python made it. C code's own writes never raised.
"""

from __future__ import annotations

import errno
import io
import sys
from typing import Any

_LOST = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ESTALE})


class LogFile(io.FileIO):
    """A file that pretends a write that found no room was done."""

    dropped = 0
    """Writes lost so far."""

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _LOST:
                raise
            self.dropped += 1
            return memoryview(data).nbytes


def guard() -> None:
    """Replace sys.stdout and sys.stderr. Call it before anything keeps a reference to them (logging does)."""
    if isinstance(sys.__stdout__, io.TextIOWrapper) and sys.stdout is sys.__stdout__:
        sys.stdout = sys.__stdout__ = _rebuilt(sys.__stdout__, 1)  # type: ignore[misc]
    if isinstance(sys.__stderr__, io.TextIOWrapper) and sys.stderr is sys.__stderr__:
        sys.stderr = sys.__stderr__ = _rebuilt(sys.__stderr__, 2)  # type: ignore[misc]


def _rebuilt(stream: io.TextIOWrapper[Any], descriptor: int) -> io.TextIOWrapper[Any]:
    stream.flush()
    raw: Any = LogFile(descriptor, "wb", closefd=False)
    raw.name = stream.name
    unbuffered = isinstance(stream.buffer, io.RawIOBase)
    rebuilt: Any = io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    rebuilt.mode = "w"
    guarded: io.TextIOWrapper[Any] = rebuilt
    return guarded
