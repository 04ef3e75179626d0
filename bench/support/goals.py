"""The goals of the project that a benchmark measures, and how each figure is found in its rows.

A goal that is not measured is reported as that. Runs nothing; suite.py does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
Tables = Sequence[Mapping[str, Any]]
MEMORY_ROW = "loom, disk and memory tier"
LIMIT_ROW = "new memory and one copy on two threads (the limit)"


@dataclass(frozen=True)
class Goal:
    bench: str
    what: str
    limit: float
    unit: str
    find: Callable[[Tables], float | None]
    least: bool = False
    """The figure must be at least the limit; else at most."""

    def verdict(self, tables: Tables) -> tuple[float | None, str]:
        try:
            figure = self.find(tables)
        except (KeyError, TypeError, ValueError, ZeroDivisionError, StopIteration):
            figure = None
        if figure is None:
            return None, "not measured"
        good = figure >= self.limit if self.least else figure <= self.limit
        return figure, "met" if good else "missed"

    @property
    def wanted(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.limit:g} {self.unit}".strip()


def rows(tables: Tables, title: str = "") -> list[Row]:
    return [row for table in tables if str(table.get("bench", "")).startswith(title) for row in table["rows"]]


def of(tables: Tables, key: str, title: str = "", **where: object) -> list[float]:
    """The values of one column in the rows that match."""
    found = [row for row in rows(tables, title) if all(row.get(k) == v for k, v in where.items())]
    return [float(row[key]) for row in found if isinstance(row.get(key), int | float)]


def one(tables: Tables, key: str, title: str = "", **where: object) -> float | None:
    found = of(tables, key, title, **where)
    return found[0] if found else None


def worst(tables: Tables, key: str, title: str = "", **where: object) -> float | None:
    return max(of(tables, key, title, **where), default=None)


def ratio(above: float | None, below: float | None) -> float | None:
    return None if not above or not below else above / below


def _of_method(tables: Tables, ours: str, key: str, theirs: str = "", their_key: str = "") -> float | None:
    """The worst ratio over the sizes of a state: how many times as long the other method takes."""
    found = []
    for size in dict.fromkeys(row["state_mb"] for row in rows(tables)):
        mine = one(tables, key, state_mb=size, method=ours)
        other = one(tables, their_key or key, state_mb=size, method=theirs or ours)
        if (part := ratio(other, mine)) is not None:
            found.append(part)
    return min(found, default=None)


def _beside_limit(tables: Tables) -> float | None:
    """The worst over the sizes of a state."""
    faster = _of_method(tables, MEMORY_ROW, "new_process_s", LIMIT_ROW)
    return None if faster is None else 1 / faster


def _loom_copies(tables: Tables) -> float | None:
    blocking = [row["copies"] for row in rows(tables) if str(row.get("method")).startswith("loom")]
    return max(blocking, default=None)


def _reader(tables: Tables, drawn: str) -> float | None:
    key = "CPU µs/sample"
    theirs = one(tables, key, reader=f"torch DataLoader in memory, {drawn}")
    return ratio(theirs, one(tables, key, reader=f"ElasticLoader in memory, {drawn}"))


def _late_steering(tables: Tables) -> float | None:
    """The worst p99 in parts of its own goal."""
    found = [row["p99_ms"] / row["goal_ms"] for row in rows(tables, "Steering") if row.get("goal_ms")]
    return max(found, default=None)


def _start(tables: Tables, what: str) -> float | None:
    return ratio(one(tables, "median_s", what="torchrun"), one(tables, "median_s", what=what))


GOALS: tuple[Goal, ...] = (
    Goal("restart", "SIGKILL → first step, plain DDP, median", 0.15, "s",
         lambda t: next(iter(of(t, "median_s", script="DDP", launcher="torchloom")), None)),
    Goal("start", "`loom run` from nothing, times as fast as torchrun", 2.0, "×",
         lambda t: _start(t, "loom run, from nothing"), least=True),
    Goal("start", "`loom run` with `loom up` running, times as fast as torchrun", 5.0, "×",
         lambda t: _start(t, "loom run, up"), least=True),
    Goal("start", "`loom ps`, median", 0.15, "s", lambda t: one(t, "median_s", what="loom ps")),
    Goal("rebalance", "one of four workers 2 × slower, speed in parts of perfect balance", 0.8, "",
         lambda t: one(t, "of_perfect"), least=True),
    Goal("simulate", "judging, worst job and size, CPU ms per 1,000 ranks", 15.0, "ms",
         lambda t: worst(t, "ms per 1,000 ranks", "simulate: judging")),
    Goal("overhead", "recording an all_reduce, native, training thread", 5.0, "µs",
         lambda t: one(t, "extra", what="all_reduce, native recording", clock="thread")),
    Goal("overhead", "an optimizer step, training thread", 20.0, "µs",
         lambda t: one(t, "extra", what="optimizer step, hooks", clock="thread")),
    Goal("overhead", "a boundary with nothing pending", 0.1, "µs",
         lambda t: one(t, "extra", what="boundary with nothing pending", clock="thread")),
    Goal("control", "a change in force on all ranks, p99 in parts of three steps and 100 ms", 1.0, "",
         _late_steering),
    Goal("control", "changes that ranks contradicted", 0.0, "",
         lambda t: worst(t, "contradicted", "Steering")),
    Goal("checkpoint", "blocking time of a save, worst row, in copies of the state", 1.3, "copies",
         _loom_copies),
    Goal("checkpoint", "restore from memory in a new process, times as fast as DCP", 5.0, "×",
         lambda t: _of_method(t, MEMORY_ROW, "new_process_s", "DCP save"), least=True),
    Goal("checkpoint", "the same, in parts of making the memory and copying once on two threads", 1.1, "",
         _beside_limit),
    Goal("checkpoint", "save to S3, in parts of a plain parallel client", 0.8, "",
         lambda t: _of_method(t, "loom, S3", "total_s", "S3, plain parallel client"), least=True),
    Goal("checkpoint", "load from S3, in parts of a plain parallel client", 0.8, "",
         lambda t: _of_method(t, "loom, S3", "restore_s", "S3, plain parallel client"), least=True),
    Goal("neighbour", "next step after a lost node, from a neighbour, times as fast as from S3", 1.0, "×",
         lambda t: one(t, "faster", "neighbour: with copies"), least=True),
    Goal("neighbour", "a step beside copies to a neighbour, in steps without", 1.05, "",
         lambda t: one(t, "step_ratio", "neighbour: with copies")),
    Goal("data", "ElasticLoader, nothing drawn, in parts of torch's loader", 0.7, "",
         lambda t: _reader(t, "nothing drawn"), least=True),
    Goal("data", "ElasticLoader, torch's numbers drawn, in parts of torch's loader", 0.4, "",
         lambda t: _reader(t, "a number of torch drawn"), least=True),
    Goal("data", "ElasticLoader, NumPy's numbers drawn, in parts of torch's loader", 0.4, "",
         lambda t: _reader(t, "a number of NumPy drawn"), least=True),
    Goal("data", "ElasticLoader, Python's numbers drawn, in parts of torch's loader", 0.4, "",
         lambda t: _reader(t, "a number of Python drawn"), least=True),
)  # fmt: skip
