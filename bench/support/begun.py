"""Which processes a command has started by now: when each began, and how much CPU time it has used since."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PARTS = ("supervisor", "nats", "weaver", "agent")


@dataclass(frozen=True)
class Begun:
    name: str
    after_s: float
    """Since the command was typed; the kernel counts in steps of 10 ms."""
    cpu_s: float


def boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def begun(name: str, pid: int, typed_s: float) -> Begun | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return Begun(name, int(fields[19]) * TICK_S - typed_s, (int(fields[11]) + int(fields[12])) * TICK_S)


def of_home(home: str, command: int, workers: Iterable[int], typed_s: float) -> list[Begun]:
    """Of `loom run`: the command, the parts of its home, the parent of its workers, and these."""
    named = [("loom run", command)]
    for part in PARTS:
        record = Path(home, "parts", f"{part}.json")
        if record.exists():
            named.append((part, int(record.read_text().partition('"pid":')[2].split(",")[0])))
    ranks = sorted(workers)
    spawners = {parent for pid in ranks if (parent := _parent(pid))}
    named += [("spawner", pid) for pid in sorted(spawners)] + [("worker", pid) for pid in ranks]
    found = [begun(name, pid, typed_s) for name, pid in named]
    return [one for one in found if one is not None]


def of_launcher(command: int, workers: Iterable[int], typed_s: float) -> list[Begun]:
    """Of torchrun: the launcher and its workers."""
    found = [begun("torchrun", command, typed_s), *(begun("its worker", w, typed_s) for w in sorted(workers))]
    return [one for one in found if one is not None]


def _parent(pid: int) -> int:
    try:
        return psutil.Process(pid).ppid()
    except psutil.Error:
        return 0


def table(runs: list[list[Begun]]) -> list[dict[str, object]]:
    """Medians over all runs, in the order in which the processes begin."""
    names = {one.name for run in runs for one in run}
    rows = []
    for name in names:
        seen = [one for run in runs for one in run if one.name == name]
        rows.append(
            {
                "process": name,
                "begins_after_s": round(statistics.median(one.after_s for one in seen), 2),
                "cpu_s_until_first_step": round(statistics.median(one.cpu_s for one in seen), 2),
            }
        )
    return sorted(rows, key=lambda row: float(str(row["begins_after_s"])))
