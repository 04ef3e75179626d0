"""The tables of docs/detection.md, from results alone, and where they stand in that page.

A table stands between two comments of the page, `<!-- NAME table -->` and `<!-- end of NAME table -->`. What
is between them is made by `--render` and replaced as a whole.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from typing import Any

from detecting.cases import CASES, HANGS, SLOWNESS, Case
from support.peers import interval
from support.table import put

__all__ = ["circumstances", "host", "is_right", "put"]

Results = Sequence[dict[str, Any]]
_KINDS = (
    ("dies", "a rank dies, or leaves while others train"),
    ("absent", "a rank does not come: it waits for what never happens, is stopped, or is lost"),
    ("unlike", "ranks do not agree about an operation"),
    ("slow", "a rank, a link or the whole job is slow"),
    ("numbers", "wrong numbers"),
    ("harmless", "a rank waits for what another process, a timer or a person ends, or is at work"),
    ("nothing", "nothing worth a report"),
)
_WATCHED = ("absent", "unlike")
"""What NCCL's watchdog ends after 600 s, unless the process is gone by then."""


def host(faults: Results) -> list[str]:
    """The table of real gloo jobs, by what happens; the cases that were not right are listed below it."""
    lines = [
        *circumstances(faults),
        "",
        "| what happens | cases | right | median s (worst) | false restarts | torchrun | watchdog of 600 s |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, meaning in _KINDS:
        if mine := [r for r in faults if _kind(CASES[r["case"]]) == name]:
            lines.append(_row(meaning, name, mine))
    lines.append(_row("**all**", "", faults))
    if wrong := [r for r in faults if not is_right(r)]:
        lines += ["", "Not right:", "", *(f"* `{r['case']}`, {r['size']} workers: {_told(r)}" for r in wrong)]
    lines += ["", f"The cases: {_names(faults)}."]
    return lines


def circumstances(results: Results) -> list[str]:
    """Where and how it was measured."""
    sizes = ", ".join(str(size) for size in sorted({r["size"] for r in results}))
    loads = [r["load"] for r in results if "load" in r]
    load = f", load average {min(loads):.0f}–{max(loads):.0f} (other jobs included)" if loads else ""
    return [f"{os.cpu_count()} cores, {len(results)} runs with {sizes} workers{load}."]


def is_right(run: dict[str, Any]) -> bool:
    return run["right_s"] is not None and not run.get("false_restart")


def _kind(case: Case) -> str:
    if not case.expected:
        return "nothing"
    first = case.expected[0]
    if first in SLOWNESS:
        return "slow"
    if case.harmless:
        return "harmless"
    if first in HANGS:
        return "absent"
    return {"crash": "dies", "desync": "unlike", "ordering-deadlock": "unlike"}.get(first, "numbers")


def _row(meaning: str, name: str, mine: Results) -> str:
    right, delays = sum(map(is_right, mine)), [r["right_s"] for r in mine if r["right_s"]]
    took = f"{_seconds(statistics.median(delays))} ({_seconds(max(delays))})" if delays and name else ""
    false = sum(bool(r.get("false_restart")) for r in mine)
    exited = sum(bool(r.get("exited")) for r in mine)
    stuck = sum(not r.get("exited") for r in mine) if name in _WATCHED else 0
    torchrun = f"sees {exited}" if exited else "sees none"
    watchdog = f"ends {stuck}, names no rank" if stuck else "sees none"
    shown = f"{torchrun} | {watchdog}" if name else " | "
    cases = len({r["case"] for r in mine})
    share = f"{right} of {len(mine)} ({interval(right, len(mine))})"
    return f"| {meaning} | {cases} | {share} | {took} | {false} | {shown} |"


def _seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _told(run: dict[str, Any]) -> str:
    said = (
        "; ".join(f"{t['kind']} of {t['ranks'] or 'nobody'}" for t in run["told"]) or "nothing was reported"
    )
    return f"{said} (rank {run['rank']} has the fault)" + (", **restarted**" * bool(run.get("false_restart")))


def _names(faults: Results) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(r["case"] for r in faults))
