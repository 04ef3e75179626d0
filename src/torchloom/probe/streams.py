"""stdout and stderr of a worker: a full disk or a broken log file costs lines, never the training run.

Python raises OSError from print() when the file below has no room, and ends with status 120 when the last
flush fails. `guard()` rebuilds the two streams over the same descriptors with a raw file that drops such
writes and counts them; all else about the streams stays as Python made it. C code's own writes never raised.
What was lost is counted in the black box. Once there is room again, a line in the log says what is missing.
"""

from __future__ import annotations

import errno
import io
import sys
from typing import Any

from torchloom.wire.blackbox import Progress, View

_LOST = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ESTALE})


class Loss:
    """What this process could not write so far, of both streams."""

    def __init__(self) -> None:
        self.lines = self.bytes = 0
        self.view: View | None = None

    def count(self, data: memoryview) -> None:
        self.bytes += data.nbytes
        self.lines += bytes(data).count(b"\n")
        if self.view is not None:
            self.view.set_progress(Progress.LOG_LOST_LINES, self.lines)
            self.view.set_progress(Progress.LOG_LOST_BYTES, self.bytes)


lost = Loss()


def count_into(view: View) -> None:
    """This process begins, and has lost nothing: from now on what it loses is counted in its box."""
    lost.lines = lost.bytes = 0
    lost.view = view


class LogFile(io.FileIO):
    """A file that pretends a write that found no room was done."""

    _unsaid: tuple[int, int] | None = None
    """Lines and bytes that were lost before the gap that the log does not mention yet."""

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        try:
            if self._unsaid is not None:
                self._mention(*self._unsaid)
            return super().write(data)
        except OSError as error:
            if error.errno not in _LOST:
                raise
            if self._unsaid is None:
                self._unsaid = (lost.lines, lost.bytes)
            piece = memoryview(data).cast("B")
            lost.count(piece)
            return piece.nbytes

    def _mention(self, lines: int, bytes_: int) -> None:
        """Say in the log that something is missing here. Raises OSError while there is no room for it."""
        missing, size = max(1, lost.lines - lines), lost.bytes - bytes_
        text = f"\n[loom] {missing} lines ({size} bytes) are missing here: there was no room on the disk\n"
        super().write(text.encode())
        self._unsaid = None


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
