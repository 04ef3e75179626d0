"""Output of the verbs that show something: the API's JSON, or a table. Owns formats, not content."""

from __future__ import annotations

import io
import json
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from textwrap import fill, wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchloom.cli.show.layout import Layout
    from torchloom.client import Client
    from torchloom.client.schema import JobDetail, JobSummary

STATE_STYLES = {
    "running": "green",
    "completed": "green",
    "ready": "green",
    "failed": "bold red",
    "lost": "bold red",
    "silent": "yellow",
    "waiting": "yellow",
    "backoff": "yellow",
    "stopping": "yellow",
    "running, paused": "yellow",
    "applied": "green",
    "not applied": "bold red",
    "diverged": "bold red",
    "rolled back": "yellow",
}
"""Colour beside the word, never instead of it; rich leaves it out for NO_COLOR."""


def show_json(value: object) -> None:
    """Pure JSON on stdout."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def show_troubles(client: Client) -> None:
    """On stderr what keeps the control plane from acting: what stdout shows may be old then."""
    from torchloom.errors import LoomError

    try:
        for sentence in client.health().get("troubles", []):
            print(f"loom: {sentence}", file=sys.stderr)
    except LoomError:
        pass  # what was asked for is shown already


def show_line(value: object) -> None:
    """One line of NDJSON, flushed at once: a program may wait for it at the other end of a pipe."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], nothing: str, spare: Sequence[str] = ()
) -> None:
    """A table that fits the terminal, without the columns of `spare` if necessary; complete in a pipe."""
    from torchloom.cli.show import layout

    found = list(rows)
    if not found:
        print(nothing)
        return
    # While a frame of --watch is drawn, sys.stdout is a buffer: the terminal behind it decides.
    seen = on_terminal()
    width = shutil.get_terminal_size().columns if seen else 200
    shape = layout.fit(columns, found, width, spare)
    lines = _draw(shape, width, seen)
    if shape.below:
        sentences = [fill(text, width, initial_indent="  ", subsequent_indent="  ") for text in shape.below]
        pairs = zip(lines[2:], sentences, strict=True)
        lines = [*lines[:2], *(line for pair in pairs for line in pair if line.strip())]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def line_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str], narrow: Sequence[str]
) -> None:
    """A table with one line per row: the last column, of sentences, is cut to the room that is left."""
    from torchloom.cli.show import layout

    seen = on_terminal()
    width = shutil.get_terminal_size().columns if seen else 200
    shape = layout.one_line(columns, rows, width, spare, narrow, cut=seen)
    sys.stdout.write("".join(f"{line}\n" for line in _draw(shape, max(width, shape.width), seen)))


def _draw(shape: Layout, width: int, seen: bool) -> list[str]:
    """The table's lines: names, a rule, and one per row unless its sentence needs more."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, name in enumerate(shape.columns):
        # The last column holds sentences and shrinks first; ids and numbers must not be cut.
        beside = number == len(shape.columns) - 1 and not shape.below
        drawn.add_column(name, overflow="fold", no_wrap=not beside)
    for row in shape.rows:
        cells = zip(shape.columns, row, strict=True)
        drawn.add_row(*(Text(cell, _style(name, cell)) for name, cell in cells))
    # Not to stdout directly: rich turns a closed pipe into its own error.
    text = io.StringIO()
    Console(width=width, highlight=False, force_terminal=seen, file=text).print(drawn)
    return text.getvalue().splitlines()


def _style(column: str, cell: str) -> str:
    return STATE_STYLES.get(cell, "") if column == "STATE" else ""


def fact(name: str, text: str) -> None:
    """Print a name and a sentence beside it, which keeps to its column on a terminal."""
    print(f"{name:<10} {wrapped(text, 11) if on_terminal() else text}")


def wrapped(text: str, indent: int) -> str:
    """A text that begins in this column of the terminal, words whole where they fit."""
    width = max(20, shutil.get_terminal_size().columns - indent)
    lines = [part for line in text.split("\n") for part in wrap(line, width, break_on_hyphens=False) or [""]]
    return ("\n" + " " * indent).join(lines)


def on_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.__stdout__ is not None and sys.__stdout__.isatty()


def seconds(value: float | None) -> str:
    """A readable duration: 0.14 s, 12.3 s, 4 min 05 s, 2 h 03 min."""
    if value is None:
        return "–"
    if value < 10:
        return f"{value:.2f} s"
    if value < 120:
        return f"{value:.0f} s"
    minutes, rest = divmod(int(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def time_left(value: float | None) -> str:
    """Time left, without fractions because it is an estimate."""
    return seconds(value) if value is None or value >= 10 else f"{value:.0f} s"


def step_time(value: float) -> str:
    """The time of one step, in the unit that needs no leading zeros."""
    if value <= 0:
        return "–"
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"


def clock(at_ns: int) -> str:
    """Local wall-clock time; today's without the date."""
    if not at_ns:
        return "–"
    then, now = time.localtime(at_ns / 1e9), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M:%S", then)


def state(summary: JobSummary | JobDetail) -> str:
    """The job's state, and whether it is paused."""
    return f"{summary['state']}, paused" if summary.get("paused") else summary["state"]


def steps(summary: JobSummary | JobDetail) -> str:
    """The step and, if the total is known, the percentage done."""
    step, total = summary["step"], summary["total_steps"]
    return f"{step}/{total}" if total else f"{step}"


def rate(steps_per_s: float) -> str:
    if steps_per_s <= 0:
        return "–"
    return f"{steps_per_s:.1f}/s" if steps_per_s >= 1 else f"{1 / steps_per_s:.1f} s/step"


def number(value: float | str | None) -> str:
    """A metric with its significant digits; NaN and infinity as words."""
    if isinstance(value, str):
        return value
    return "–" if value is None else f"{value:.4g}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"
