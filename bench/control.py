"""Changes of a running job: how long until they are in force on all ranks, and whether on all at one step.

    python bench/control.py [--changes N] [--only NAME] [--within-min M] [--json]
    python bench/control.py --only storm --storm N [--rate R] [--seed S]

A real `loom up`, real DDP workers on gloo. A change takes from the PATCH to the end of the first step that
used it on the slowest rank, by the workers' own logs. `cost` asks for ten changes a second, in every other
block of one run, of a job that computes all the time, and compares the CPU time its steps took. `--storm`
changes a job while everything around it is killed at random, and believes only what the ranks noted
(support/storm.py); it takes minutes and is not run by default.

Takes about 10 min on two cores. No change is requested after the limit (--within-min), and a job that does
not start in time is reported as that: what was measured until then is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import statistics
import time
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from support.launchers import WORKLOADS, wait_for
from support.steering import PARTS, Cluster, ask, cluster, connect, outcome
from support.storm import storm
from support.table import emit, progress

T = TypeVar("T")

SHAPES = {
    "2 workers, 5 ms": (2, 5.0),
    "2 workers, 50 ms": (2, 50.0),
    "8 workers, 50 ms": (8, 50.0),
    "32 workers, 200 ms": (32, 200.0),
}
COST = "cost"
STEP_MS = 50.0
COSTS = {"steps that compute": ("--busy",), "steps that sleep": ()}
PAIRS = 6
BLOCK_S = 8.0
RATE = 10.0
_WARM = 3
"""Changes that are not counted: the first ones load code and open connections everywhere."""
_FEWEST = 40
"""Steps of every rank before the first change."""
START_WITHIN_S = 180.0


class NotStarted(Exception):
    """The job did not come to be changed."""


@dataclass(frozen=True)
class Row:
    rank: int
    step: int
    value: float
    at_ns: int
    cpu_ns: int


class Job:
    """One job under way, its notes, and changes of it."""

    def __init__(self, made: Cluster, workers: int, step_ms: float, *more: str) -> None:
        self.workers = workers
        self.notes = made.root / "notes"
        self.notes.mkdir()
        script = str(WORKLOADS / "steered.py")
        flags = ("--nproc-per-node", str(workers), script, str(self.notes), "--step-ms", str(step_ms), *more)
        self.name = made.loom("submit", *flags).split()[-1]
        self.client = connect(made)
        if not wait_for(lambda: self._steps() >= _FEWEST, START_WITHIN_S, every_s=0.2):
            raise NotStarted(f"a rank had not made {_FEWEST} steps {START_WITHIN_S:g} s after the start")

    def _steps(self) -> int:
        """Of the rank that has made the fewest; 0 while one of them has noted nothing."""
        notes = list(self.notes.iterdir())
        made = [path.read_bytes().count(b"\n") for path in notes]
        return min(made) if len(made) >= self.workers else 0

    def rows(self) -> Iterator[Row]:
        for path in self.notes.iterdir():
            for line in path.read_text().splitlines():
                fields = line.split()
                if len(fields) == 5:
                    rank, step, value, at_ns, cpu_ns = fields
                    yield Row(int(rank), int(step), float(value), int(at_ns), int(cpu_ns))

    def by_rank(self) -> dict[int, list[Row]]:
        found: dict[int, list[Row]] = {}
        for row in sorted(self.rows(), key=lambda row: row.step):
            found.setdefault(row.rank, []).append(row)
        return found

    def ask(self, value: float) -> str:
        return ask(self.client, self.name, {"lr": value}, key=f"{value}")

    def outcome(self, operation: str) -> dict[str, Any]:
        return outcome(self.client, self.name, operation)


def first_use(rows: dict[int, list[Row]]) -> dict[float, dict[int, Row]]:
    """By value and rank the first step that used it."""
    found: dict[float, dict[int, Row]] = {}
    for rank, mine in rows.items():
        for row in mine:
            found.setdefault(row.value, {}).setdefault(rank, row)
    return found


def agree(job: Job, told: dict[float, dict[str, Any]]) -> int:
    """How many outcomes contradict what the ranks noted. Of several at one step only the last is seen."""
    used, wrong = first_use(job.by_rank()), 0
    last = {o["at_step"]: value for value, o in sorted(told.items()) if o["state"] == "applied"}
    for value, end in told.items():
        ranks = used.get(value, {})
        if end["state"] == "applied" and last[end["at_step"]] == value:
            wrong += len(ranks) != job.workers or {row.step for row in ranks.values()} != {end["at_step"]}
        else:
            wrong += end["state"] not in ("applied", "not applied") or bool(ranks)
    return wrong


def values() -> Iterator[float]:
    return (0.2 + number / 10_000 for number in itertools.count())


def measure(name: str, changes: int, until: float) -> dict[str, object]:
    workers, step_ms = SHAPES[name]
    with cluster() as made:
        job = Job(made, workers, step_ms)
        asked: dict[float, int] = {}
        told: dict[float, dict[str, Any]] = {}
        for value in itertools.islice(values(), _WARM + changes):
            time.sleep(random.uniform(0.0, 0.1))
            if len(told) > _WARM and time.monotonic() > until:
                break
            asked[value] = time.monotonic_ns()
            told[value] = job.outcome(job.ask(value))
        time.sleep(2 * step_ms / 1000 + 0.1)
        rows = job.by_rank()
        used, real_ms = first_use(rows), _step_ms(rows)
        counted = [value for value in list(told)[_WARM:] if told[value]["state"] == "applied"]
        took = sorted((max(r.at_ns for r in used[v].values()) - asked[v]) / 1e6 for v in counted)
        steps = sorted(_steps_until(rows, asked[v], used[v]) for v in counted)
        return {
            "what": name,
            "n": len(took),
            "not applied": sum(o["state"] != "applied" for o in told.values()),
            "contradicted": agree(job, told),
            "step_ms": round(real_ms, 1),
            "p50_ms": round(percentile(took, 0.5)),
            "p99_ms": round(percentile(took, 0.99)),
            "worst_ms": round(took[-1]),
            "p50_steps": percentile(steps, 0.5),
            "p99_steps": percentile(steps, 0.99),
            "goal_ms": round(3 * real_ms + 100),
            "again": sum(o["attempts"] > 1 for o in told.values()),
        }


def percentile(ordered: Sequence[T], share: float) -> T:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _steps_until(rows: dict[int, list[Row]], asked_ns: int, used: dict[int, Row]) -> int:
    """Steps that ended after the request, up to the one that used the value, on the slowest rank."""
    return max(
        bisect(rows[rank], row.at_ns, key=_at) - bisect(rows[rank], asked_ns, key=_at)
        for rank, row in used.items()
    )


def _at(row: Row) -> int:
    return row.at_ns


def _step_ms(rows: dict[int, list[Row]]) -> float:
    """The median step, which on a busy machine is longer than was asked for."""
    return (
        statistics.median(b.at_ns - a.at_ns for mine in rows.values() for a, b in itertools.pairwise(mine))
        / 1e6
    )


def cost(what: str, pairs: int, until: float) -> dict[str, object]:
    """What ten changes a second cost the training, and who else pays; blocks without and with them.

    Beside steps that compute, some that sleep: their own CPU time is small and hardly varies, so that ours is
    seen; it is the same work in both.
    """
    with cluster() as made:
        job = Job(made, 2, STEP_MS, *COSTS[what])
        fresh = values()
        told: dict[float, dict[str, Any]] = {}
        quiet: list[float] = []
        busy: list[float] = []
        shares: dict[str, list[float]] = {part: [] for part in PARTS}
        for _ in range(pairs):
            if quiet and time.monotonic() > until:
                break
            began_ns = _sleep(BLOCK_S)
            quiet.append(_cpu_ms(job, began_ns))
            before, began_ns = {part: made.cpu_s(part) for part in PARTS}, time.monotonic_ns()
            told |= _ten_a_second(job, fresh)
            busy.append(_cpu_ms(job, began_ns))
            for part in PARTS:
                lasted_s = (time.monotonic_ns() - began_ns) / 1e9
                shares[part].append((made.cpu_s(part) - before[part]) / lasted_s)
        more = sorted(100 * (b - q) / STEP_MS for q, b in zip(quiet, busy, strict=True))
        return {
            "what": what,
            "n": len(told),
            "not applied": sum(o["state"] != "applied" for o in told.values()),
            "contradicted": agree(job, told),
            "cpu_ms_a_step": round(statistics.median(quiet), 2),
            "more_%": round(statistics.median(more), 2),
            "pairs_%": " ".join(f"{one:+.1f}" for one in more),
            **{f"{part}_cpu_%": round(100 * statistics.median(shares[part]), 1) for part in PARTS},
        }


def _sleep(seconds: float) -> int:
    began_ns = time.monotonic_ns()
    time.sleep(seconds)
    return began_ns


def _ten_a_second(job: Job, fresh: Iterator[float]) -> dict[float, dict[str, Any]]:
    """Asked for at their times, whatever became of those before."""
    began, ids = time.monotonic(), {}
    for number in range(int(BLOCK_S * RATE)):
        value = next(fresh)
        ids[value] = job.ask(value)
        time.sleep(max(0.0, began + (number + 1) / RATE - time.monotonic()))
    return {value: job.outcome(operation) for value, operation in ids.items()}


def _cpu_ms(job: Job, since_ns: int) -> float:
    """CPU time of one step on one rank since then, by the ranks' own count."""
    used, steps = 0, 0
    for rows in job.by_rank().values():
        mine = [row for row in rows if row.at_ns >= since_ns]
        used, steps = used + mine[-1].cpu_ns - mine[0].cpu_ns, steps + len(mine) - 1
    return used / steps / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--changes", type=int, default=50)
    parser.add_argument("--only", choices=[*SHAPES, COST, "storm"])
    parser.add_argument("--pairs", type=int, default=PAIRS, help="blocks without and with changes")
    parser.add_argument("--storm", type=int, default=0, metavar="N", help="changes amid kills")
    parser.add_argument("--rate", type=float, default=2.0, help="changes a second of the storm")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--within-min", type=float, default=20.0, help="no change begins after this time")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    until = time.monotonic() + 60 * args.within_min
    title = "Steering: from the request to the step that used it on every rank"
    notes = [
        "goal_ms is three of the median steps and 100 ms; contradicted must be 0",
        f"the first {_WARM} changes are not counted; again: how many needed more than one try",
    ]
    chosen = [name for name in SHAPES if args.only in (None, name)]
    if chosen:
        _emit(title, notes, {n: partial(measure, n, args.changes, until) for n in chosen}, until, args.json)
    if args.only in (None, COST):
        notes = [
            f"CPU of the training processes, blocks in turn; more_%: of the {STEP_MS:g} ms of a step",
            "the goal is 2 %",
        ]
        title = f"Steering: what {RATE:g} changes a second cost"
        _emit(title, notes, {w: partial(cost, w, args.pairs, until) for w in COSTS}, until, args.json)
    if args.storm:
        progress("storm")
        notes = ["no outcome, ranks differ and contradicted must be 0"]
        emit("Steering amid kills", [storm(args.storm, args.rate, args.seed)], notes, args.json)


def _emit(
    title: str,
    notes: list[str],
    parts: dict[str, Callable[[], Mapping[str, object]]],
    until: float,
    as_json: bool,
) -> None:
    """Measure row by row and print what there is when the time is up, or when somebody interrupts."""
    rows, notes = [], list(notes)
    with contextlib.suppress(KeyboardInterrupt):
        for name, measured in parts.items():
            if time.monotonic() > until:
                notes.append(f"{name}: no time was left for it")
                continue
            progress(name)
            try:
                rows.append(measured())
            except NotStarted as error:
                notes.append(f"{name}: {error}")
    emit(title, rows, notes, as_json)


if __name__ == "__main__":
    main()
