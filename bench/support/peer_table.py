"""The table of README about torchloom and its peers, from what bench/peers.py measured. Measures nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from support.table import Table

SOME_MB = 400
"""The size of the state whose saves are compared."""
HEAD = (
    "| | version | n | typed → first step | SIGKILL → first step | stopped rank named | "
    f"a save of {SOME_MB} MB blocks | a collective costs more | cannot |"
)
RECORDERS = {
    "Flight Recorder": "report by itself before a timeout, name a rank without its analyzer",
    "torch.profiler": "run all the time, see that a rank hangs",
}
LACKS = {
    "torchft": "see a hang sooner than its timeout, name a rank, change a running job, save",
    "DCP": "save by itself, choose what to restore, keep a state in memory beyond its process",
    "torchloom": "show figures of a GPU: it has met none yet",
}
Row = dict[str, Any]


def lines_of(tables: Mapping[str, Table], torch: str, torchft: str) -> list[str]:
    """The table, and what is to be known of it. A part that was not run leaves its cells empty."""
    rows = [_launcher(row, tables) for row in _rows(tables, "launchers")]
    rows += [_torchft(row, torchft) for row in _rows(tables, "torchft") if _is_stock_return(row)]
    rows += _dcp(_rows(tables, "saves"), torch)
    rows += [
        _cells(name, torch, row["n"], more=_micro(row), cannot=RECORDERS[name])
        for name in RECORDERS
        for row in _rows(tables, "collectives")
        if row["recorder"] == name
    ]
    load = f"{os.cpu_count()} cores, no GPU, load average {os.getloadavg()[0]:.1f} at the end"
    notes = [
        note
        for name in ("launchers", "torchft", "saves")
        if name in tables
        for note in _left_out(tables[name])
    ]
    said = f"{load}. Medians in seconds (worst). {' '.join(notes)}".strip()
    return [said, "", HEAD, "|---" * (HEAD.count("|") - 1) + "|", *rows]


def _left_out(table: Table) -> list[str]:
    return [
        f"{note[0].upper()}{note[1:]}."
        for note in table.notes
        if "left out" in note or "limit of time" in note
    ]


def _rows(tables: Mapping[str, Table], name: str) -> list[Row]:
    return tables[name].rows if name in tables else []


def _cells(
    name: str,
    version: str,
    n: object = "",
    start: str = "",
    back: str = "",
    named: str = "",
    save: str = "",
    more: str = "",
    cannot: str = "",
) -> str:
    shown = f"**{name}**" if name == "torchloom" else name
    return "| " + " | ".join(map(str, (shown, version, n, start, back, named, save, more, cannot))) + " |"


def _launcher(row: Row, tables: Mapping[str, Table]) -> str:
    ours = row["launcher"] == "torchloom"
    return _cells(
        row["launcher"],
        row["version"],
        row["n"],
        _timed(row["start_s"], row["start_worst_s"]),
        _timed(row["recover_s"], row["recover_worst_s"], row["recovered"]),
        _timed(row["named_s"], row["named_worst_s"], row["hang named"]),
        _save(_rows(tables, "saves"), "loom, disk and memory tier") if ours else "",
        next((_micro(r) for r in _rows(tables, "collectives") if r["recorder"] == "torchloom" and ours), ""),
        row["cannot"] or LACKS["torchloom"],
    )


def _is_stock_return(row: Row) -> bool:
    return bool(row["launcher"] == "stock" and row["case"] == "back in quorum")


def _torchft(row: Row, version: str) -> str:
    back = _timed(row["median_s"], row["worst_s"])
    text = f"{back}, survivors kept {row['survivor kept']}"
    return _cells("torchft", version, row["n"], back=text, cannot=LACKS["torchft"])


def _dcp(saves: list[Row], torch: str) -> list[str]:
    names = dict.fromkeys(row["method"] for row in saves if str(row["method"]).startswith("DCP"))
    return [_cells(name, torch, save=_save(saves, name), cannot=LACKS["DCP"]) for name in names]


def _save(saves: list[Row], method: str) -> str:
    found = [row["blocking_s"] for row in saves if row["method"] == method]
    return _seconds(found[0]) if found else ""


def _micro(row: Row) -> str:
    return f"{row['extra µs']:.1f} µs ({row['worst extra µs']:.1f})"


def _timed(median: float | None, worst: float | None, share: str = "") -> str:
    """`0.15 (0.21), 3 of 3`; in no case: `0 of 3`."""
    if median is None or worst is None:
        return share
    return f"{_seconds(median)} ({_seconds(worst)})" + (f", {share}" if share else "")


def _seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
