"""Runs the benchmarks, prints each goal beside its figure, and writes docs/measurements.md's table of goals.

    python bench/suite.py                           every benchmark, in full
    python bench/suite.py --short                   each in its short form, at most 15 min together
    python bench/suite.py --only start,restart      some of them; the results of the others are kept
    python bench/suite.py --report                  run nothing: the goals by the results that are there
    python bench/suite.py --render docs/measurements.md    and put the tables into this file

Each benchmark leaves build/bench/<name>.json, so that single ones can be run again and the rest is merged. A
benchmark that fails or takes too long does not end the others: its goals are "not measured". With `--strict`
the exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from support.goals import GOALS, Goal
from support.table import machine, progress

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "build" / "bench"
SHORT_S = 15 * 60.0
FULL_S = 3600.0
GRACE_S = 20.0
BEGIN, END = "<!-- made by bench/suite.py -->", "<!-- end of what bench/suite.py made -->"


@dataclass(frozen=True)
class Bench:
    name: str
    short: tuple[str, ...] | None = ()
    """Its arguments in the short form; None: it is left out there."""
    short_s: float = 60.0
    """It is ended after this long in the short form."""
    full: tuple[str, ...] = ()


BENCHES: tuple[Bench, ...] = (
    Bench("start", ("--runs", "2"), 90),
    Bench("restart", ("--only", "DDP", "--workers", "2", "--runs", "3", "--within-min", "1.5"), 140),
    Bench("rebalance", ("--steps", "30"), 60),
    Bench("simulate", ("--runs", "0", "--benign", "0", "--sizes", "1024,16384"), 120),
    Bench("overhead", ("--blocks", "8"), 90),
    Bench("control", ("--changes", "15", "--only", "2 workers, 50 ms"), 40),
    Bench("checkpoint", ("--quick",), 190),
    Bench("data", ("--lines", "30000", "--rounds", "1"), 60),
    Bench("weaver", ("--workers", "1000", "--rounds", "1"), 40),
    Bench("windows", ("--looks", "50", "--ranks", "1024", "--stream", "6"), 40),
    Bench("devices", ("--devices", "2000", "--jobs", "200", "--alerts", "50"), 30),
    Bench("detect", None, full=("--sizes", "4", "--budget", "540")),
    Bench("neighbour", None, full=("--runs", "3")),
    Bench("peers", None, full=("--runs", "3", "--within-min", "40")),
)
"""Those with a short form, or with arguments; every other file here is run in full as it is."""


def all_benches() -> tuple[Bench, ...]:
    listed = {bench.name for bench in BENCHES}
    others = sorted({path.stem for path in HERE.glob("[a-z]*.py")} - listed - {Path(__file__).stem})
    return (*BENCHES, *(Bench(name, None) for name in others))


# -- running ------------------------------------------------------------------------------------


def run(bench: Bench, short: bool, limit_s: float) -> dict[str, Any]:
    """The result of one benchmark, also if it fails."""
    arguments = (bench.short or ()) if short else bench.full
    command = [sys.executable, str(HERE / f"{bench.name}.py"), *arguments, "--json"]
    progress(f"== {bench.name} {' '.join(arguments)} (at most {limit_s:.0f} s)")
    began, load = time.monotonic(), os.getloadavg()[0]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    trouble = ""
    try:
        out, _ = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        trouble = f"ended after {limit_s:.0f} s"
        out = _end(child)
    except KeyboardInterrupt:
        _end(child)
        raise
    if child.returncode and not trouble:
        trouble = f"ended with {child.returncode}"
    return {
        "name": bench.name,
        "arguments": list(arguments),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 1),
        "load": round(max(load, os.getloadavg()[0]), 1),
        "machine": machine(),
        "trouble": trouble,
        "tables": tables_in(out),
    }


def _end(child: subprocess.Popen[str]) -> str:
    """SIGINT first: what a benchmark started is ended by itself, and some print what they have."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            out, _ = child.communicate(timeout=GRACE_S)
            return out
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            break
    return ""


def tables_in(out: str) -> list[dict[str, Any]]:
    """The tables that a benchmark printed. Some print one record, or a list of them, in place of a table."""
    found = []
    for line in out.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict) and "rows" in said:
            found.append(said)
        elif isinstance(said, dict | list):
            records = said if isinstance(said, list) else [said]
            flat = [{k: v for k, v in one.items() if not isinstance(v, dict | list)} for one in records]
            found.append({"bench": "", "rows": flat, "notes": []})
    return found


# -- reporting ----------------------------------------------------------------------------------


def results_in(folder: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.stem] = json.loads(path.read_text())
        except ValueError:
            progress(f"{path.name} cannot be read and counts as not there")
    return found


def judged(results: dict[str, dict[str, Any]]) -> list[tuple[Goal, float | None, str]]:
    return [(goal, *goal.verdict(results.get(goal.bench, {}).get("tables", []))) for goal in GOALS]


def show(results: dict[str, dict[str, Any]]) -> int:
    """Print all goals; how many are missed."""
    lines = judged(results)
    width = max(len(goal.what) for goal in GOALS)
    print(f"\n{'goal'.ljust(width)}  {'wanted':>14}  {'measured':>10}  ")
    for goal, figure, verdict in lines:
        print(f"{goal.what.ljust(width)}  {goal.wanted:>14}  {shown(figure):>10}  {verdict}")
    count = {word: sum(v == word for _, _, v in lines) for word in ("met", "missed", "not measured")}
    print(f"\n{count['met']} goals met, {count['missed']} missed, {count['not measured']} not measured")
    for one in results.values():
        if one["trouble"]:
            print(f"{one['name']}: {one['trouble']}")
    return count["missed"]


def shown(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)


def markdown(results: dict[str, dict[str, Any]]) -> str:
    """The goals, then the tables of every benchmark with a result."""
    lines = ["## Goals", "", "| goal | wanted | measured | |", "|---|---|---|---|"]
    for goal, figure, verdict in judged(results):
        mark = f"**{verdict}**" if verdict == "missed" else verdict
        lines.append(f"| {goal.what} (`bench/{goal.bench}.py`) | {goal.wanted} | {shown(figure)} | {mark} |")
    for one in results.values():
        command = " ".join(["python", f"bench/{one['name']}.py", *map(_quoted, one["arguments"])])
        lines += ["", f"## `{command}`", ""]
        ended = f", {one['trouble']}" if one["trouble"] else ""
        lines.append(f"{one['at']}, {one['machine']}, load {one['load']:g}, {one['seconds']:g} s{ended}.")
        for table in one["tables"]:
            lines += ["", *_table(table["rows"])]
            lines += [f"* {note}" for note in table.get("notes", [])]
    return "\n".join(lines)


def _table(rows: list[dict[str, Any]]) -> list[str]:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    if not keys:
        return []
    lines = [f"| {' | '.join(keys)} |", f"|{'---|' * len(keys)}"]
    lines += [f"| {' | '.join(shown(row.get(key, '')) for key in keys)} |" for row in rows]
    return [*lines, ""]


def _quoted(word: str) -> str:
    return f"'{word}'" if " " in word else word


def render(path: Path, results: dict[str, dict[str, Any]]) -> None:
    """Replace what was made before; text around it is people's."""
    text = path.read_text() if path.exists() else "# Measurements\n"
    made = f"{BEGIN}\n{markdown(results)}\n{END}\n"
    before, begun, rest = text.partition(BEGIN)
    if begun:
        _, _, after = rest.partition(f"{END}\n")
        path.write_text(f"{before}{made}{after}")
    else:
        path.write_text(f"{text.rstrip()}\n\n{made}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="short forms, at most 15 min together")
    parser.add_argument("--only", default="", help="benchmarks by name, comma-separated")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--render", type=Path, metavar="FILE", help="put goals and tables into this file")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the results are kept")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal is missed")
    args = parser.parse_args()
    names = [name for name in args.only.split(",") if name]
    known = [bench.name for bench in all_benches()]
    if unknown := [name for name in names if name not in known]:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there is {', '.join(known)}")
    args.results.mkdir(parents=True, exist_ok=True)
    chosen = [b for b in all_benches() if (b.name in names or not names) and not args.report]
    ends = time.monotonic() + SHORT_S
    for bench in chosen:
        if args.short and bench.short is None:
            continue
        left_s = ends - time.monotonic() - GRACE_S if args.short else FULL_S
        if left_s < GRACE_S:
            progress(f"no time is left for {bench.name}")
            continue
        try:
            result = run(bench, args.short, min(left_s, bench.short_s if args.short else FULL_S))
        except KeyboardInterrupt:
            progress("interrupted: what was measured until now is kept")
            break
        (args.results / f"{bench.name}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False))
    results = results_in(args.results)
    missed = show(results)
    if args.render:
        render(args.render, results)
    sys.exit(1 if missed and args.strict else 0)


if __name__ == "__main__":
    main()
