"""Where the time of a start goes: when each phase was over, by the spawner's log and the workload's notes."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from support.launchers import Notes
from torchloom.home import Home

_MARK = "spawner: phases "
Phases = dict[str, float]
"""When each was over, in seconds since the command was typed, in order."""


def of_spawner(home: str, typed_ns: int) -> Phases:
    """What the spawner of this LOOM_HOME logged about its warming; empty if it says nothing."""
    for log in Home(Path(home)).sockets.glob("spawner-*.log"):
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith(_MARK):
                ends: dict[str, float] = json.loads(line.removeprefix(_MARK))
                return {name: at_s - typed_ns / 1e9 for name, at_s in ends.items()}
    return {}


def of_worker(notes: Notes, typed_ns: int) -> Phases:
    """What the process that stepped first noted."""
    steps = [(ns, pid) for pid, _, step, ns in notes.steps() if step == 1]
    first_ns, pid = min(steps)
    found = {}
    for line in (notes.directory / str(pid)).read_text().splitlines():
        fields = line.split()
        if len(fields) == 4 and fields[0] == "phase":
            found[fields[1].replace("_", " ")] = (int(fields[2]) - typed_ns) / 1e9
    return {**found, "first step": (first_ns - typed_ns) / 1e9}


def table(runs: list[Phases]) -> list[dict[str, object]]:
    """Medians over all runs of how long each phase took, and when it was over."""
    rows: list[dict[str, object]] = []
    for name in max(runs, key=len, default={}):
        took, ended = [], []
        for run in runs:
            if name in run:
                before = max((at for at in run.values() if at < run[name]), default=0.0)
                took.append(run[name] - before)
                ended.append(run[name])
        rows.append(
            {
                "phase": name,
                "took_ms": round(1000 * statistics.median(took)),
                "over_after_s": round(statistics.median(ended), 2),
            }
        )
    return rows
