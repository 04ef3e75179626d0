"""Prints the result of a benchmark: a table for people, or JSON alone with --json; puts tables into pages."""

from __future__ import annotations

import json
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Table:
    """What a benchmark measured: rows that share their keys, and what a reader should know of them."""

    title: str
    rows: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)

    def emit(self, as_json: bool) -> None:
        emit(self.title, self.rows, self.notes, as_json)


def emit(title: str, rows: Sequence[Mapping[str, object]], notes: Sequence[str], as_json: bool) -> None:
    """Print rows that share their keys. Nothing but JSON goes to stdout with `as_json`."""
    if as_json:
        print(json.dumps({"bench": title, "machine": machine(), "rows": list(rows), "notes": list(notes)}))
        return
    print(f"\n{title}\n{machine()}")
    if rows:
        keys = list(dict.fromkeys(k for row in rows for k in row))
        cells = [[_show(row.get(k, "")) for k in keys] for row in rows]
        widths = [max(len(k), *(len(line[i]) for line in cells)) for i, k in enumerate(keys)]
        print("  ".join(k.ljust(w) for k, w in zip(keys, widths, strict=True)))
        print("  ".join("-" * w for w in widths))
        for line in cells:
            print("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)))
    for note in notes:
        print(f"* {note}")


def progress(text: str) -> None:
    """Say on stderr what is going on, because some benchmarks take minutes."""
    print(text, file=sys.stderr, flush=True)


def put(page: Path, name: str, lines: Sequence[str]) -> None:
    """Replace a table of a page; the text around it is people's."""
    first, last = f"<!-- {name} table -->\n", f"<!-- end of {name} table -->\n"
    before, found, rest = page.read_text().partition(first)
    _, ended, after = rest.partition(last)
    if not found or not ended:
        raise SystemExit(f"{page} has no lines {first.strip()} and {last.strip()}: add them where it belongs")
    page.write_text(before + first + "\n" + "\n".join(lines) + "\n\n" + last + after)


def spread(values: Sequence[float]) -> dict[str, float | int | None]:
    """Number, median, p90 and worst of some seconds."""
    if not values:
        return {"n": 0, "median_s": None, "p90_s": None, "worst_s": None}
    ordered = sorted(values)
    return {
        "n": len(ordered),
        "median_s": round(statistics.median(ordered), 4),
        "p90_s": round(ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))], 4),
        "worst_s": round(ordered[-1], 4),
    }


def machine() -> str:
    import os

    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def _show(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)
