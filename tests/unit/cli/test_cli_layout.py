"""Tables in terminals of any width: nothing is cut, and no sentence becomes a tower of syllables."""

from __future__ import annotations

import os
import re

import pytest

from torchloom.cli.show import output
from torchloom.cli.show.layout import fit

COLUMNS = ("JOB", "STATE", "STEP", "LOSS", "TIME", "REASON")
WHY = "generation 1: all 2 workers run; hang.1 is open"
ROWS = [
    ("train-3f9a", "running, paused", "1200/20000", "–", "2 min 25 s", WHY),
    ("b", "failed", "7", "–", "23 s", ""),
]


def test_a_wide_terminal_has_everything_in_its_place() -> None:
    shape = fit(COLUMNS, ROWS, 120, spare=("TIME",))
    assert shape.columns == COLUMNS and shape.rows == tuple(ROWS) and shape.below == ()


def test_what_tells_nothing_goes_first_and_then_what_can_be_spared() -> None:
    assert fit(COLUMNS, ROWS, 95, spare=("TIME",)).columns == ("JOB", "STATE", "STEP", "TIME", "REASON")
    narrower = fit(COLUMNS, ROWS, 80, spare=("TIME",))
    assert narrower.columns == ("JOB", "STATE", "STEP", "REASON")
    assert narrower.rows[0] == ("train-3f9a", "running, paused", "1200/20000", WHY)


def test_a_sentence_without_room_goes_below_its_row_and_the_columns_come_back() -> None:
    shape = fit(COLUMNS, ROWS, 60, spare=("TIME",))
    assert shape.columns == ("JOB", "STATE", "STEP", "TIME")
    assert shape.below == (WHY, "")


def test_a_table_without_sentences_has_nothing_below() -> None:
    assert fit(("A", "B"), [("a" * 50, "b" * 20)], 40).below == ()


def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    for width in (60, 80, 100, 132):
        monkeypatch.setattr(
            "shutil.get_terminal_size", lambda *_, width=width, **__: os.terminal_size((width, 24))
        )
        output.table(COLUMNS, ROWS, nothing="", spare=("TIME",))
        shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        lines = [line.rstrip() for line in shown.splitlines()]
        assert max(map(len, lines)) <= width, shown
        assert "workers" in shown and shown.count("hang.1") == 1, shown
        for whole in ("train-3f9a", "running, paused", "1200/20000", "failed"):
            assert sum(whole in line for line in lines) == 1, shown
