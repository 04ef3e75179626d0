"""The output of one rank as a terminal would show it in the end: progress bars become their last state.

tqdm writes a carriage return before each state of a bar, and moves the cursor for nested bars; rich moves the
cursor up and erases lines. Only these movements are carried out, on rows of text of our own, never on the
person's terminal. What may reach the terminal is text and colours (SGR); every other escape sequence is made
visible. It owns no output: `screen` writes what it returns.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from torchloom.terminal import visible

_TOKEN = re.compile(r"\r|\x08|\x1b\[([0-9;:?]*)([A-Za-z])")
_BEGUN = re.compile(r"\x1b(?:\[[0-9;:?]{0,32})?\Z")
_SGR = re.compile(r"\x1b\[[0-9;:]*m")
MOST_ROWS = 24
"""Rows of one rank that can still change. A bar that needs more prints the ones above again."""
_CALM_LINES = 12
"""After so many lines without a cursor movement lines are final at once again."""
_LONGEST_SGR = 64
_RESET = "\x1b[0m"


class Folder:
    """Takes one rank's output in any pieces; gives lines when they are final, and those that are not yet."""

    def __init__(self, colours: bool = False) -> None:
        self._colours = colours
        self._rows = [""]
        self._row = 0
        self._begun = ""
        """The beginning of an escape sequence whose end has not come yet."""
        self._again = False
        """The next text begins the row anew: a carriage return came before it."""
        self._look = ""
        """The colours in force."""
        self._kept = 0
        """How many finished rows the script has gone back over: they stay open."""
        self._calm = 0
        self._hidden = False
        """rich hides the cursor while its bars move."""

    def feed(self, text: str) -> list[str]:
        """Take the next piece. Returns the lines that are final now."""
        final: list[str] = []
        text, self._begun = self._begun + text, ""
        begun = _BEGUN.search(text)
        if begun:
            text, self._begun = text[: begun.start()], begun.group()
        pieces = text.split("\n")
        for number, piece in enumerate(pieces):
            self._write(piece)
            if number < len(pieces) - 1:
                self._line_end(final)
        return final

    def finish(self) -> list[str]:
        """Nothing more comes: whatever is left is final."""
        self._text(self._begun)
        self._begun = ""
        rows = self._rows if self._rows[-1] else self._rows[:-1]
        self._rows, self._row = [""], 0
        return [self._closed(row) for row in rows]

    def open_rows(self) -> list[str]:
        """The lines that are not final, without empty ones."""
        return [self._closed(row) for row in self._rows if _SGR.sub("", row).strip()]

    def peek(self, text: str) -> list[str]:
        """What `open_rows` would be after this piece, which comes again later."""
        copy = Folder(self._colours)
        copy.__dict__.update(self.__dict__ | {"_rows": list(self._rows)})
        return [row for row in [*copy.feed(text), *copy.open_rows()] if row.strip()]

    def _write(self, piece: str) -> None:
        if "\r" not in piece and "\x1b" not in piece and "\x08" not in piece:
            self._text(piece)
            return
        place = 0
        for found in _TOKEN.finditer(piece):
            self._text(piece[place : found.start()])
            place = found.end()
            match found.group():
                case "\r":
                    self._again = True
                case "\x08":
                    self._rows[self._row] = self._rows[self._row][:-1]
                case sequence:
                    self._sequence(sequence, found[1], found[2])
        self._text(piece[place:])

    def _text(self, text: str) -> None:
        if not text:
            return
        text = visible(text)
        row = self._rows[self._row]
        self._rows[self._row] = self._look + text if self._again or not row else row + text
        self._again = False

    def _sequence(self, sequence: str, parameters: str, kind: str) -> None:
        count = int(parameters) if parameters.isdecimal() else 1
        match kind:
            case "m":
                self._colour(parameters)
            case "A":
                self._up(count)
            case "B":
                self._row = min(self._row + count, MOST_ROWS)
                self._rows += [""] * (self._row + 1 - len(self._rows))
            case "K" if parameters in ("", "0", "2"):
                if parameters == "2" or self._again:
                    self._rows[self._row] = ""
            case "J" if parameters in ("", "0"):
                del self._rows[self._row + 1 :]
            case "G" if parameters in ("", "0", "1"):
                self._again = True
            case "l" | "h" if parameters == "?25":
                self._hidden = kind == "l"
            case _:
                self._text(sequence)

    def _up(self, count: int) -> None:
        """A row above the first one is final already: the next time it stays open for longer."""
        self._calm = 0
        missing = count - self._row
        if missing > 0:
            self._kept = min(MOST_ROWS, max(self._kept, self._row + missing))
        self._row = max(0, self._row - count)

    def _line_end(self, final: list[str]) -> None:
        self._again = False
        self._calm += 1
        if self._calm > _CALM_LINES:
            self._kept = 0
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append("")
        kept = MOST_ROWS if self._hidden else self._kept
        while self._row > kept:
            final.append(self._closed(self._rows.pop(0)))
            self._row -= 1

    def _colour(self, parameters: str) -> None:
        if not self._colours:
            return
        allowed = ";".join(_allowed(parameters))
        if not allowed:
            return
        sequence = f"\x1b[{allowed}m"
        begins_anew = allowed.split(";")[0] in ("", "0")
        self._look = "" if allowed == "0" else sequence if begins_anew else self._look + sequence
        self._look = self._look[:0] if len(self._look) > _LONGEST_SGR else self._look
        if self._rows[self._row] and not self._again:
            self._rows[self._row] += sequence

    def _closed(self, row: str) -> str:
        return row + _RESET if "\x1b" in row and not row.endswith(_RESET) else row


def _allowed(parameters: str) -> Iterator[str]:
    """The codes that only colour text; nothing that hides it or makes it blink."""
    codes = iter((parameters or "0").split(";"))
    for code in codes:
        if code in ("38", "48", "58"):
            kind = next(codes, "")
            rest = [next(codes, "") for _ in range({"5": 1, "2": 3}.get(kind, 0))]
            if rest and all(one.isdecimal() for one in rest):
                yield ";".join((code, kind, *rest))
        elif re.fullmatch(r"(?:38|48|58)(?::[0-9]*)+|4:[0-5]", code):
            yield code
        elif code in ("", "0"):
            yield "0"
        elif code.isdecimal() and int(code) in _COLOURS:
            yield code


_COLOURS = frozenset((*range(1, 5), 7, 9, *range(21, 25), 27, *range(29, 50), 53, 55, 59, *range(90, 108)))


def width_of(text: str) -> int:
    """How many columns a text takes."""
    return sum(_columns(sign) for sign in _SGR.sub("", text))


def cut(text: str, width: int) -> str:
    """At most so many columns of a text, with its colours."""
    if width_of(text) <= width:
        return text
    made, used, place = [], 0, 0
    while place < len(text):
        found = _SGR.match(text, place)
        if found:
            made.append(found.group())
            place = found.end()
            continue
        columns = _columns(text[place])
        if used + columns > width - 1:
            break
        made.append(text[place])
        used, place = used + columns, place + 1
    return "".join(made) + "…" + (_RESET if "\x1b" in text else "")


def _columns(sign: str) -> int:
    if unicodedata.combining(sign):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1
