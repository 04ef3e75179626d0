"""Changes of a running job: how long until they are in force on all ranks, and whether on all at one step.

    python bench/control.py [--changes N] [--only NAME] [--storm N [--rate R] [--seed S]] [--json]

A real `loom up`, real DDP workers on gloo. A change takes from the PATCH to the end of the first step that
used it on the slowest rank, by the workers' own logs. `cost` asks for ten changes a second, in every other
block of one run, of a job that computes all the time, and compares the CPU time its steps took. `--storm`
changes a job while everything around it is killed at random, and believes only what the ranks noted
(support/storm.py); it takes minutes and is not run by default.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from support.launchers import WORKLOADS
from support.steering import PARTS, Cluster, ask, cluster, connect, outcome
from support.storm import storm
from support.table import emit, progress

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
        while sum(1 for _ in self.rows()) < 40 * workers:
            time.sleep(0.1)

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

    def first_use(self) -> dict[float, dict[int, Row]]:
        """By value and rank the first step that used it."""
        found: dict[float, dict[int, Row]] = {}
        for row in sorted(self.rows(), key=lambda row: row.step):
            found.setdefault(row.value, {}).setdefault(row.rank, row)
        return found


def agree(job: Job, told: dict[float, dict[str, Any]]) -> int:
    """How many outcomes contradict what the ranks noted. Of several at one step only the last is seen."""
    used, wrong = job.first_use(), 0
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


def measure(name: str, changes: int) -> dict[str, object]:
    workers, step_ms = SHAPES[name]
    with cluster() as made:
        job = Job(made, workers, step_ms)
        asked: dict[float, int] = {}
        told: dict[float, dict[str, Any]] = {}
        for value in itertools.islice(values(), _WARM + changes):
            time.sleep(random.uniform(0.0, 0.1))
            asked[value] = time.monotonic_ns()
            told[value] = job.outcome(job.ask(value))
        time.sleep(2 * step_ms / 1000 + 0.1)
        used, real_ms = job.first_use(), _step_ms(job)
        took = sorted(
            (max(row.at_ns for row in used[value].values()) - asked[value]) / 1e6
            for value in list(told)[_WARM:]
            if told[value]["state"] == "applied"
        )
        steps = sorted(
            _steps_until(job, asked[value], used[value])
            for value in list(told)[_WARM:]
            if told[value]["state"] == "applied"
        )
        return {
            "what": name,
            "n": len(took),
            "not applied": sum(o["state"] != "applied" for o in told.values()),
            "contradicted": agree(job, told),
            "step_ms": round(real_ms, 1),
            "median_ms": round(took[len(took) // 2]),
            "p99_ms": round(took[min(len(took) - 1, int(0.99 * len(took)))]),
            "worst_ms": round(took[-1]),
            "median_steps": steps[len(steps) // 2],
            "p99_steps": steps[min(len(steps) - 1, int(0.99 * len(steps)))],
            "goal_ms": round(3 * real_ms + 100),
            "again": sum(o["attempts"] > 1 for o in told.values()),
        }


def _steps_until(job: Job, asked_ns: int, used: dict[int, Row]) -> int:
    """Steps that ended after the request, up to the one that used the value, on the slowest rank."""
    return max(
        sum(asked_ns < row.at_ns <= used[rank].at_ns for row in rows)
        for rank, rows in job.by_rank().items()
        if rank in used
    )


def _step_ms(job: Job) -> float:
    """The median step, which on a busy machine is longer than was asked for."""
    rows = job.by_rank().values()
    return statistics.median(b.at_ns - a.at_ns for row in rows for a, b in itertools.pairwise(row)) / 1e6


def cost(what: str, pairs: int) -> dict[str, object]:
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
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for name in SHAPES:
        if args.only in (None, name):
            progress(name)
            rows.append(measure(name, args.changes))
    title = "Steering: from the request to the step that used it on every rank"
    notes = [
        "goal_ms is three of the median steps and 100 ms; contradicted must be 0",
        f"the first {_WARM} changes are not counted; again: how many needed more than one try",
    ]
    if rows:
        emit(title, rows, notes, args.json)
    if args.only in (None, COST):
        rows = []
        for what in COSTS:
            progress(f"{COST}: {what}")
            rows.append(cost(what, args.pairs))
        notes = [
            f"CPU of the training processes, blocks in turn; more_%: of the {STEP_MS:g} ms of a step",
            "the goal is 2 %",
        ]
        emit(f"Steering: what {RATE:g} changes a second cost", rows, notes, args.json)
    if args.storm:
        progress("storm")
        notes = ["no outcome, ranks differ and contradicted must be 0"]
        emit("Steering amid kills", [storm(args.storm, args.rate, args.seed)], notes, args.json)


if __name__ == "__main__":
    main()
