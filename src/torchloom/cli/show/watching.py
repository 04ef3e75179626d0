"""`--watch`: redraws a view whenever it changes. Owns the redrawing, not the content."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from torchloom.cli.show import output
from torchloom.client import NotAnswering, Unavailable

EVERY_S = 1.0
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_CLEAR_ALL = "\x1b[2J"

Value = TypeVar("Value")


def watch(
    read: Callable[[], Value],
    show: Callable[[Value], None],
    lines: Callable[[Value], list[object]] | None = None,
    done: Callable[[Value], bool] = lambda _: False,
) -> Value:
    """Read and show until `done`, or without end. Waits for a service that has answered before and is away.

    With `lines`, prints NDJSON: each object that the previous read did not contain.
    """
    before: list[object] | None = None
    frame = Frame()
    while True:
        try:
            value = read()
        except (NotAnswering, Unavailable) as error:
            if before is None:
                raise
            frame.note(str(error.message))
            time.sleep(EVERY_S)
            continue
        if lines is not None:
            now = lines(value)
            for item in now:
                if before is None or item not in before:
                    output.show_line(item)
            before = now
        else:
            frame.draw(drawn(show, value))
            before = []
        if done(value):
            return value
        time.sleep(EVERY_S)


def drawn(show: Callable[[Value], None], value: Value) -> str:
    """The text that `show` prints."""
    buffer = io.StringIO()
    with contextlib.redirect_stdout(buffer):
        show(value)
    return buffer.getvalue()


class Frame:
    """On a terminal, replace the previous state; in a pipe, print one state after the other."""

    def __init__(self) -> None:
        self._live = output.on_terminal()
        self._last: str | None = None

    def draw(self, text: str) -> None:
        if text == self._last:
            return
        if not self._live:
            sys.stdout.write(("\n" if self._last is not None else "") + text)
            sys.stdout.flush()
        else:
            self._redraw(text)
        self._last = text

    def note(self, text: str) -> None:
        """Print below the last state why it does not change."""
        if self._live and self._last is not None:
            self._redraw(f"{self._last}\n{text}; waiting for it\n")

    def _redraw(self, text: str) -> None:
        # One write without clearing first: clearing before every frame makes the terminal flicker.
        rows = text.splitlines()[: max(1, shutil.get_terminal_size().lines - 1)]
        start = _CLEAR_ALL + _HOME if self._last is None else _HOME
        sys.stdout.write(start + "".join(f"{row}{_CLEAR_LINE}\n" for row in rows) + _CLEAR_BELOW)
        sys.stdout.flush()
