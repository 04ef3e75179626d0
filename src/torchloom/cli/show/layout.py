"""Fits a table into a terminal: which columns to drop, and whether sentences go below their rows.

Pure: texts and a width in, texts out. Ids and numbers are never cut, because half a number is a wrong number.
Empty columns go first, then spare columns; then the sentences move below their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GAP = 3
SENTENCE = 32
"""A sentence in a column narrower than this is hard to read: it goes below its row instead."""
SHORT = 24
"""A sentence cut to less than this says nothing."""
NOTHING = ("", "–")


@dataclass(frozen=True)
class Layout:
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    below: tuple[str, ...] = ()
    """The sentence of each row, if sentences have no column."""

    @property
    def width(self) -> int:
        lengths = [
            max(len(name), *(len(row[at]) for row in self.rows)) for at, name in enumerate(self.columns)
        ]
        return _width(range(len(self.columns)), lengths)


def fit(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, spare: Sequence[str] = ()
) -> Layout:
    """The last column holds sentences; `spare` names other columns in the order in which to drop them."""
    last = len(columns) - 1
    lengths = [max(len(name), *(len(row[at]) for row in rows)) for at, name in enumerate(columns)]
    silent = [at for at in range(1, last) if all(row[at] in NOTHING for row in rows)]
    go = (*silent, *(columns.index(name) for name in spare if name in columns))
    beside = [*lengths[:last], min(lengths[last], SENTENCE)]
    kept = _without(range(last + 1), go, beside, width)
    if _width(kept, beside) <= width or lengths[last] < SENTENCE:
        return _layout(columns, rows, kept)
    # Below its row a sentence has the whole width, and the columns gain its room.
    made = _layout(columns, rows, _without(range(last), go, lengths, width))
    return Layout(made.columns, made.rows, tuple(row[last] for row in rows))


def one_line(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    spare: Sequence[str],
    narrow: Sequence[str],
    *,
    cut: bool,
) -> Layout:
    """One line per row: the sentences of the last column are cut to what is left, at least SHORT. Columns of
    `spare` make room for that; those of `narrow` are dropped only for columns that must not be cut. Without
    `cut` nothing is dropped."""
    last = len(columns) - 1
    lengths = [max(len(name), *(len(row[at]) for row in rows)) for at, name in enumerate(columns)]
    if not cut:
        return _layout(columns, [(*row[:last], first_line(row[last])) for row in rows], range(last + 1))
    sentences = any(row[last] for row in rows)
    light = [columns.index(name) for name in spare if name in columns]
    heavy = [columns.index(name) for name in narrow if name in columns]
    silent = [at for at in heavy if all(row[at] in NOTHING for row in rows)]
    kept = _without(range(last), light, lengths, width - GAP - SHORT)
    room = width - _width(kept, lengths) - GAP
    if room < SHORT or not sentences:
        return _layout(columns, rows, _without(range(last), (*light, *silent, *heavy), lengths, width))
    return _layout(columns, [(*row[:last], _cut(row[last], room)) for row in rows], [*kept, last])


def first_line(text: str) -> str:
    return text.partition("\n")[0]


def _cut(text: str, room: int) -> str:
    line = first_line(text)
    return line if len(line) <= room else line[: room - 1] + "…"


def _without(kept: Sequence[int], go: Sequence[int], lengths: Sequence[int], width: int) -> list[int]:
    """As many columns as fit; those in `go` are dropped first, in their order."""
    left = list(kept)
    for at in go:
        if _width(left, lengths) <= width:
            break
        if at in left:
            left.remove(at)
    return left


def _width(kept: Sequence[int], lengths: Sequence[int]) -> int:
    return sum(lengths[at] for at in kept) + GAP * (len(kept) - 1)


def _layout(columns: Sequence[str], rows: Sequence[Sequence[str]], kept: Sequence[int]) -> Layout:
    return Layout(tuple(columns[at] for at in kept), tuple(tuple(row[at] for at in kept) for row in rows))
