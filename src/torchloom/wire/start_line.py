"""The one line that an agent writes into a worker's log: which process of which generation begins here.

A log is plain text, so the record is a line of text with a fixed form. The agent writes it; `loom run`
reports starts itself and leaves it out. A line that a script prints counts only if it has exactly this form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORM = re.compile(r"\[loom\] generation (\d+): rank (\d+) of (\d+)(?:, restart (\d+))?")
START_LINE = re.compile(rf"^{_FORM.pattern}$\n?", re.MULTILINE)
"""Finds such lines in the text of a log."""


@dataclass(frozen=True, slots=True)
class StartLine:
    generation: int
    rank: int
    world_size: int
    restart: int = 0

    def __str__(self) -> str:
        again = f", restart {self.restart}" if self.restart else ""
        return f"[loom] generation {self.generation}: rank {self.rank} of {self.world_size}{again}"


def read_start_line(line: str) -> StartLine | None:
    """The record in a line of a log; None if it is any other line."""
    found = _FORM.fullmatch(line)
    return None if found is None else StartLine(*(int(number or 0) for number in found.groups()))
