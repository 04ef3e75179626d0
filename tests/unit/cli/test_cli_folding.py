"""A rank's output on a screen: the last state of bars, colours, and nothing that steers a terminal."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import Progress
from tqdm import tqdm

from torchloom.cli.show.folding import Folder, cut, width_of

ESCAPES = re.compile(r"\x1b(?!\[[0-9;:]*m)")


def shown(text: str, colours: bool = False, every: int = 7) -> list[str]:
    """All final lines, fed in small pieces as a live log is."""
    folder = Folder(colours)
    lines = [line for at in range(0, len(text), every) for line in folder.feed(text[at : at + every])]
    return [*lines, *folder.finish()]


def test_lines_are_lines_and_a_carriage_return_begins_one_anew() -> None:
    assert Folder().feed("a\n 0%\r50%\r100%\nb\x0cc\r\n") == ["a", "100%", "b␌c"]
    assert Folder().feed("\n\na\n") == ["", "", "a"], "empty lines stay"
    folder = Folder()
    assert folder.feed("10%\r20%") == [] and folder.open_rows() == ["20%"]
    assert folder.peek("\r30%") == ["30%"] and folder.open_rows() == ["20%"], "a look changes nothing"
    assert folder.feed("\r40%\nnext") == ["40%"] and folder.finish() == ["next"]
    assert Folder().feed("|\x08/\x08-\n") == ["-"], "a spinner"


def test_bars_of_tqdm_become_one_line_each() -> None:
    file = io.StringIO()
    for _ in tqdm(range(50), desc="first", file=file, mininterval=0, ncols=40):
        pass
    tqdm.write("between", file=file)
    for _ in tqdm(range(3), desc="second", file=file, mininterval=0, ncols=40):
        pass
    assert file.getvalue().count("\r") > 50
    lines = shown(file.getvalue())
    assert [line.split(":")[0] for line in lines if line] == ["first", "between", "second"]
    assert all("100%" in line for line in lines if ":" in line)


def test_nested_bars_of_tqdm_do_not_fill_the_log() -> None:
    file = io.StringIO()
    for _ in tqdm(range(30), desc="outer", file=file, mininterval=0, ncols=40, position=0):
        for _ in tqdm(range(4), desc="inner", file=file, mininterval=0, ncols=40, position=1, leave=False):
            pass
    lines = [line for line in shown(file.getvalue()) if line.strip()]
    assert file.getvalue().count("\n") > 30, "each state of the inner bar writes a line end"
    assert len(lines) <= 4 and any("outer: 100%" in line for line in lines), lines


def test_bars_of_rich_become_their_last_state() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=60, color_system="standard")
    with Progress(console=console, auto_refresh=False) as progress:
        bars = [progress.add_task(name, total=20) for name in ("one", "two", "three")]
        for number in range(20):
            for bar in bars:
                progress.advance(bar)
            progress.refresh()
            if number == 10:
                console.print("midway")
    console.print("after")
    assert file.getvalue().count("\x1b[1A") > 30
    for colours in (False, True):
        lines = [line for line in shown(file.getvalue(), colours) if line.strip()]
        plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
        assert [line.split()[0] for line in plain] == ["midway", "one", "two", "three", "after"], lines
        assert all("100%" in line for line in plain[1:4])
        assert any("\x1b" in line for line in lines) == colours


def test_colours_stay_and_end_with_their_line() -> None:
    assert shown("\x1b[1;31mred\x1b[0m plain\n", True) == ["\x1b[1;31mred\x1b[0m plain\x1b[0m"]
    assert shown("\x1b[32mone\ntwo\x1b[m\nthree\n", True) == [
        "\x1b[32mone\x1b[0m",
        "\x1b[32mtwo\x1b[0m",
        "three",
    ]
    assert shown("\x1b[1;31mred\x1b[0m plain\n", False) == ["red plain"]
    assert shown("\x1b[38;5;208mo\x1b[48;2;1;2;3mp\n", True) == ["\x1b[38;5;208mo\x1b[48;2;1;2;3mp\x1b[0m"]
    assert shown("\x1b[8msecret\x1b[5;31mx\n", True) == ["secret\x1b[31mx\x1b[0m"], "nothing hides or blinks"


@pytest.mark.parametrize(
    "attack", ["\x1b]52;c;ZXZpbA==\x07", "\x1b]0;evil\x07", "\x1b[2J", "\x9b2J", "\x1bc"]
)
@pytest.mark.parametrize("colours", [False, True])
def test_what_would_steer_a_terminal_is_made_visible(attack: str, colours: bool) -> None:
    for every in (1, 3, 1000):
        (line,) = shown(f"a{attack}b\n", colours, every)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", line) and line[0] == "a" and line[-1] == "b"


PIECES = st.sampled_from(
    [
        "a",
        "日",
        "\r",
        "\n",
        "\x1b[A",
        "\x1b[3B",
        "\x1b[2K",
        "\x1b[K",
        "\x1b[31m",
        "\x1b[0m",
        "\x1b[?25l",
        "\x1b[?25h",
        "\x08",
        "\x1b]0;x\x07",
        "\x1b[9999A",
        "\x1b[J",
        "\x1b",
        "\x9b1A",
    ]
)


@given(st.lists(PIECES, max_size=60).map("".join), st.booleans(), st.integers(1, 20))
def test_any_output_comes_to_text_and_colours(text: str, colours: bool, every: int) -> None:
    lines = shown(text, colours, every)
    assert not any(ESCAPES.search(line) or "\n" in line or "\r" in line or "\x08" in line for line in lines)
    assert colours or not any("\x1b" in line for line in lines)


@given(st.text(alphabet="ab日é\u0301", max_size=30), st.integers(1, 20))
def test_a_line_is_cut_to_its_columns(text: str, width: int) -> None:
    assert width_of(cut(text, width)) <= width
    assert cut(text, 100) == text
    coloured = f"\x1b[31m{text}\x1b[0m"
    assert width_of(cut(coloured, width)) <= width
