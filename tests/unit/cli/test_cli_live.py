"""`--watch`: NDJSON of what changed, frames in a pipe, a service that comes back; tables in pipes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from torchloom.cli.show import output, watching
from torchloom.client import NotAnswering


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "EVERY_S", 0.0)


def answers(*values: list[int] | Exception) -> Callable[[], list[int]]:
    left: Iterator[list[int] | Exception] = iter(values)

    def read() -> list[int]:
        value = next(left)
        if isinstance(value, Exception):
            raise value
        return value

    return read


def show(value: list[int]) -> None:
    print(*value)


def is_last(value: list[int]) -> bool:
    return 9 in value


def test_ndjson_of_what_changed(capsys: pytest.CaptureFixture[str]) -> None:
    watching.watch(answers([1, 2], [1, 2], [1, 3], [9]), show, lines=list, done=is_last)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [1, 2, 3, 9]


def test_frames_in_a_pipe_only_when_something_changed(capsys: pytest.CaptureFixture[str]) -> None:
    watching.watch(answers([1], [1], [2], [9]), show, done=is_last)
    assert capsys.readouterr().out == "1\n\n2\n\n9\n"


def test_a_service_that_comes_back_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    watching.watch(answers([1], NotAnswering("away"), [9]), show, done=is_last)
    assert capsys.readouterr().out == "1\n\n9\n"
    with pytest.raises(NotAnswering):
        watching.watch(answers(NotAnswering("never there")), show)


def test_a_frame_on_a_terminal_replaces_the_one_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    watching.watch(answers([1], [9]), show, done=is_last)
    assert capsys.readouterr().out == "\x1b[2J\x1b[H1\x1b[K\n\x1b[J" + "\x1b[H9\x1b[K\n\x1b[J"


@pytest.mark.parametrize(("no_color", "coloured"), [("1", False), ("", True)])
def test_colour_of_states(
    no_color: str, coloured: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", no_color)
    if not no_color:
        monkeypatch.delenv("NO_COLOR")
    output.table(("JOB", "STATE"), [("j", "failed")], nothing="")
    shown = capsys.readouterr().out
    assert "failed" in shown and ("\x1b[1;31m" in shown) is coloured


def test_a_table_in_a_pipe_has_no_codes(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("JOB", "STATE"), [("j", "failed")], nothing="")
    assert "\x1b" not in capsys.readouterr().out
