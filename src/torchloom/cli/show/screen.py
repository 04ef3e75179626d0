"""Log lines that scroll; below them bars that move and one status line. Owns what is written to the terminal.

Worker output goes to stdout and our own output to stderr, so a pipe gets only what the script printed.
Colour never carries meaning alone. There is none in a pipe, with NO_COLOR or on a dumb terminal; FORCE_COLOR
asks for it anyway.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from torchloom.cli.show.folding import Folder, cut
from torchloom.cli.show.output import wrapped
from torchloom.wire.start_line import START_LINE, read_start_line

_RANK_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)
_CLEAR_LINE = "\r\x1b[2K"
_CLEAR_LINE_ABOVE = "\x1b[1A\x1b[2K"
MOST_BARS = 8


def colourful(stream: TextIO) -> bool:
    """Whether colours go there: NO_COLOR wins, then FORCE_COLOR, then what the stream is."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def stamp(at_ns: int) -> str:
    """Local wall-clock time of a line with milliseconds; with the date if it is not today's."""
    if not at_ns:
        return "--:--:--.---"
    then = time.localtime(at_ns // 1_000_000_000)
    form = "%H:%M:%S" if then[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M:%S"
    return f"{time.strftime(form, then)}.{at_ns // 1_000_000 % 1000:03d}"


def _processes(text: str) -> Iterator[str]:
    """The text, with every line that reports the start of a process apart."""
    place = 0
    for found in START_LINE.finditer(text):
        if found.start() > place:
            yield text[place : found.start()]
        yield found.group()
        place = found.end()
    if place < len(text):
        yield text[place:]


class Screen:
    """Not thread-safe: one thread writes."""

    def __init__(
        self, live: bool, timestamps: bool = False, raw: bool = False, start_lines: bool = True
    ) -> None:
        self._live = live
        """Whether there is anything below the log lines."""
        self._timestamps = timestamps
        self._raw = raw
        """Lines are printed as the script wrote them."""
        self._start_lines = start_lines
        """Whether lines of ours that say which process begins are printed."""
        self._status = ""
        self._shown = 0
        """Lines that are drawn below the log lines."""
        self._shared = live and sys.stdout.isatty()
        """Whether stdout and what is below share a terminal."""
        self._folders: dict[int, Folder] = {}
        self._bars: dict[int, list[str]] = {}
        self._last_ns: dict[int, int] = {}

    @property
    def wants_bars(self) -> bool:
        """Whether lines without an end can be shown."""
        return self._shared and not self._raw

    def output(self, rank: int, text: str, at_ns: int = 0) -> None:
        """Print a piece of a worker's output; bars only once they are final, until then they are below."""
        self._last_ns[rank] = at_ns
        if self._raw:
            for line in text.removesuffix("\n").split("\n"):
                self.log(rank, line, at_ns)
            return
        for part in _processes(text):
            start = part.removesuffix("\n")
            if read_start_line(start) is None:
                self._fold(rank, part, at_ns)
                continue
            self.finish(rank)  # bars of a process that has ended
            if self._start_lines:
                self.log(rank, start, at_ns)

    def _fold(self, rank: int, text: str, at_ns: int) -> None:
        if rank not in self._folders:
            self._folders[rank] = Folder(colours=colourful(sys.stdout))
        for line in self._folders[rank].feed(text):
            self.log(rank, line, at_ns)
        self._bars[rank] = self._folders[rank].open_rows()

    def unfinished(self, rank: int, text: str) -> None:
        """What a rank's output looks like with the line that it is writing."""
        folder = self._folders.get(rank) or Folder(colours=colourful(sys.stdout))
        self._bars[rank] = folder.peek(text)
        self._hide()

    def finish(self, rank: int | None = None) -> None:
        """Nothing more comes from this rank, or from any: print what its bars show."""
        for number in sorted(self._folders) if rank is None else [rank]:
            folder = self._folders.pop(number, None)
            for line in folder.finish() if folder else ():
                self.log(number, line, self._last_ns.get(number, 0))
            self._bars.pop(number, None)

    def log(self, rank: int, line: str, at_ns: int = 0) -> None:
        """Print one line of a worker's output, prefixed with its rank."""
        if self._shared:
            self._hide()
        when = f"{stamp(at_ns)} " if self._timestamps else ""
        sys.stdout.write(f"{self._prefix(rank, when, sys.stdout)}{line}\n")

    def flush(self) -> None:
        """After a batch of lines: flush them and redraw what is below."""
        sys.stdout.flush()
        self._show()

    def say(self, text: str, mark: str = "") -> None:
        """Print one sentence of our own. `mark` is `good`, `bad` or empty."""
        sys.stdout.flush()
        self._hide()
        colour = {"good": 32, "bad": 31}.get(mark, 36)
        if sys.stderr.isatty():
            text = wrapped(text, len("[loom] "))
        prefix = f"\x1b[{colour}m[loom]\x1b[0m " if colourful(sys.stderr) else "[loom] "
        sys.stderr.write(f"{prefix}{text}\n")
        sys.stderr.flush()
        self._show()

    def status(self, text: str) -> None:
        """Replace the status line."""
        if not self._live:
            return
        self._status = text
        self._hide()
        self._show()

    def close(self) -> None:
        """Print what the bars show, and remove the status line for good."""
        self.finish()
        sys.stdout.flush()
        self._hide()
        self._live = False

    def _prefix(self, rank: int, when: str, stream: TextIO) -> str:
        if not colourful(stream):
            return f"{when}[rank {rank}] "
        when = f"\x1b[2m{when}\x1b[0m" if when else ""
        return f"{when}\x1b[{_RANK_COLOURS[rank % len(_RANK_COLOURS)]}m[rank {rank}]\x1b[0m "

    def _hide(self) -> None:
        if self._shown:
            sys.stderr.write(_CLEAR_LINE + _CLEAR_LINE_ABOVE * (self._shown - 1))
            sys.stderr.flush()
            self._shown = 0

    def _show(self) -> None:
        if not self._live or self._shown:
            return
        columns, rows = shutil.get_terminal_size()
        # A wrapped line could not be cleared.
        below = [cut(line, columns - 1) for line in self._below(max(1, min(MOST_BARS, rows // 3)))]
        if not below:
            return
        sys.stderr.write("\n".join(below))
        sys.stderr.flush()
        self._shown = len(below)

    def _below(self, most: int) -> list[str]:
        made = []
        if self.wants_bars:
            bars = [(rank, bar) for rank in sorted(self._bars) for bar in self._bars[rank]]
            shown = bars if len(bars) <= most else bars[: most - 1]
            made = [f"{self._prefix(rank, '', sys.stderr)}{bar}" for rank, bar in shown]
            if len(shown) < len(bars):
                made.append(f"… and {len(bars) - len(shown)} more lines of other ranks")
        if self._status:
            made.append(f"\x1b[2m{self._status}\x1b[0m" if colourful(sys.stderr) else self._status)
        return made
