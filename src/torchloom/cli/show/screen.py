"""Log lines that scroll and one status line that stays below them. Owns what is written to the terminal.

Worker output goes to stdout and our own output to stderr, so a pipe gets only what the script printed.
Colour never carries meaning alone; there is none if NO_COLOR is set or the output is not a terminal.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

_RANK_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)
_CLEAR_LINE = "\r\x1b[2K"


def _colourful(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def lines(text: str) -> list[str]:
    """The lines of a piece of log as a terminal would show them: only the last state of a progress bar."""
    found = text.removesuffix("\n").split("\n")
    return [line.rstrip("\r").rpartition("\r")[2] for line in found]


class Screen:
    """Not thread-safe: one thread writes."""

    def __init__(self, live: bool) -> None:
        self._live = live
        """Whether there is a status line."""
        self._status = ""
        self._shown = False
        self._shared = live and sys.stdout.isatty()
        """Whether stdout and the status line share a terminal."""

    def log(self, rank: int, line: str) -> None:
        """Print one line of a worker's output, prefixed with its rank."""
        prefix = f"[rank {rank}] "
        if _colourful(sys.stdout):
            prefix = f"\x1b[{_RANK_COLOURS[rank % len(_RANK_COLOURS)]}m{prefix}\x1b[0m"
        if self._shared:
            self._hide()
        sys.stdout.write(f"{prefix}{line}\n")

    def flush(self) -> None:
        """After a batch of lines: flush them and redraw the status line."""
        sys.stdout.flush()
        self._show()

    def say(self, text: str, mark: str = "") -> None:
        """Print one sentence of our own. `mark` is `good`, `bad` or empty."""
        sys.stdout.flush()
        self._hide()
        colour = {"good": 32, "bad": 31}.get(mark, 36)
        prefix = f"\x1b[{colour}m[loom]\x1b[0m " if _colourful(sys.stderr) else "[loom] "
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
        """Remove the status line for good."""
        self._hide()
        self._live = False

    def _hide(self) -> None:
        if self._shown:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
            self._shown = False

    def _show(self) -> None:
        if not self._live or self._shown or not self._status:
            return
        # A wrapped line could not be cleared.
        width = shutil.get_terminal_size().columns - 1
        text = self._status if len(self._status) <= width else self._status[: max(0, width - 1)] + "…"
        sys.stderr.write(f"\x1b[2m{text}\x1b[0m" if _colourful(sys.stderr) else text)
        sys.stderr.flush()
        self._shown = True
