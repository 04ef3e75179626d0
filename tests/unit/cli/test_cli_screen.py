"""What is below the log lines: bars of many ranks and a status line, drawn and taken away again."""

from __future__ import annotations

import io
import os
import re
import sys

import pytest

from torchloom.cli.show import screen
from torchloom.cli.show.screen import Screen, colourful, stamp


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def rows(self) -> list[str]:
        """The lines as they stand, after all that was cleared."""
        rows, at = [""], 0
        for part in re.split(r"(\r\x1b\[2K|\x1b\[1A\x1b\[2K|\n)", self.getvalue()):
            if part == "\n":
                at += 1
                rows[at:] = [""]
            elif part.endswith("\x1b[2K"):
                at -= part.startswith("\x1b[1A")
                rows[at:] = [""]
            else:
                rows[at] += part
        return rows


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Not a fixture: pytest's own capture is put in place after those."""
    made = Terminal()
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(screen.shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((40, 30)))
    return made


def test_bars_of_many_ranks_take_a_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    shown = Screen(live=True)
    shown.status("job running")
    for rank in range(100):
        shown.unfinished(rank, f"\r10%\r{rank}% " + "x" * 100)
        shown.flush()
    rows = terminal.rows()
    assert len(rows) == 9 and rows[-1] == "job running"
    assert rows[-2] == "… and 93 more lines of other ranks"
    assert all(len(row) <= 39 for row in rows), "a line that wraps could not be taken away"
    assert rows[0].startswith("[rank 0] 0% xxx") and rows[0].endswith("…")


def test_a_line_goes_above_and_takes_its_bar_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    shown = Screen(live=True, timestamps=True)
    shown.status("job running")
    shown.unfinished(0, "\r50%")
    shown.unfinished(1, "\r60%")
    shown.flush()
    assert terminal.rows() == ["[rank 0] 50%", "[rank 1] 60%", "job running"]
    shown.output(1, "\r50%\r100%\n")
    shown.flush()
    assert terminal.rows() == ["--:--:--.--- [rank 1] 100%", "[rank 0] 50%", "job running"]
    shown.say("a sentence that is longer than this terminal has columns")
    assert terminal.rows()[1:3] == [
        "[loom] a sentence that is longer than",
        "       this terminal has columns",
    ]
    shown.close()
    assert terminal.rows()[-1] == "" and "running" not in "".join(terminal.rows())


def test_a_process_that_begins_ends_the_bars_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    shown = Screen(live=True, start_lines=False)
    text = "\x1b[?25lone\ntwo\n[loom] generation 2: rank 0 of 2, restart 1\nthree\n"
    shown.output(0, text)
    assert terminal.rows() == ["[rank 0] one", "[rank 0] two", "[rank 0] three", ""]


def test_a_pipe_gets_no_bars(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown = Screen(live=False)
    assert not shown.wants_bars
    shown.output(0, "\r10%\r")
    shown.output(0, "\r20%\r100%\n\x1b[31mred\x1b[0m\n")
    shown.output(0, "rest")
    shown.close()
    assert capsys.readouterr().out == "[rank 0] 100%\n[rank 0] red\n[rank 0] rest\n"
    raw = Screen(live=False, raw=True)
    raw.output(0, "\r10%\r20%\x1b]0;x\x07\n")
    assert capsys.readouterr().out == "[rank 0] \r10%\r20%\x1b]0;x\x07\n"


def test_colours_are_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert colourful(Terminal()) and not colourful(io.StringIO())
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert colourful(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colourful(Terminal()) and not colourful(io.StringIO()), "NO_COLOR wins"


def test_times_of_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.250", stamp(1_250_000_000))
    assert stamp(0) == "--:--:--.---"
