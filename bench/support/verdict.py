"""Compares what was told of changes with what every step of every rank really used. Starts nothing.

Each value is asked for once, so where it shows up names its change. What a generation must have used follows
from the outcomes alone: it begins with what earlier generations were told to have, and each change that was
told of as applied in it holds from its step on; of several at one step the newest version counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Used = tuple[float, ...]
Log = dict[int, dict[int, dict[int, Used]]]
"""By generation, rank and step what was used."""


@dataclass
class Verdict:
    generations: int = 0
    steps: int = 0
    """Noted, over all ranks."""
    apart: list[str] = field(default_factory=list)
    """Steps at which ranks of one generation used different values."""
    contradicted: list[str] = field(default_factory=list)
    """Steps with other values than the reported outcomes imply, and reported changes that no step used."""


def read_notes(directory: Path) -> Log:
    """Files `<generation>.<rank>.<pid>` with lines `<step> <value> …`; a torn last line is left out."""
    log: Log = {}
    for path in directory.iterdir():
        generation, rank, _ = map(int, path.name.split("."))
        steps = log.setdefault(generation, {}).setdefault(rank, {})
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                step, *values = line.split()
                steps[int(step)] = tuple(map(float, values))
    return log


def judge(log: Log, names: Sequence[str], begin: Used, told: Sequence[Mapping[str, Any]]) -> Verdict:
    """`told` are operations as the API shows them, all ended; `begin` is what the script itself uses."""
    found = Verdict(generations=len(log))
    applied = sorted((o for o in told if o["state"] == "applied"), key=lambda o: int(o["version"]))
    for generation, ranks in sorted(log.items()):
        found.steps += sum(map(len, ranks.values()))
        now = dict(zip(names, begin, strict=True))
        for operation in applied:
            if operation["generation"] < generation:
                now |= operation["values"]
        mine = [o for o in applied if o["generation"] == generation]
        for step in range(1, 1 + max((max(steps, default=0) for steps in ranks.values()), default=0)):
            for operation in mine:
                if operation["at_step"] == step:
                    now |= operation["values"]
            used = {rank: steps[step] for rank, steps in ranks.items() if step in steps}
            if len(set(used.values())) > 1:
                found.apart.append(f"generation {generation} step {step}: {used}")
            expected = tuple(float(now[name]) for name in names)
            for rank, values in used.items():
                if values != expected:
                    found.contradicted.append(
                        f"generation {generation} step {step} rank {rank}: {values}, reported {expected}"
                    )
    found.contradicted += _unseen(log, applied) + _unwanted(log, names, told)
    return found


def _unseen(log: Log, applied: Sequence[Mapping[str, Any]]) -> list[str]:
    """A rank that went on past the step must have noted it; one that was killed before its note may not."""
    return [
        f"change {o['version']} was reported as applied at step {o['at_step']} of generation "
        f"{o['generation']}, which rank {rank} has not noted"
        for o in applied
        for rank, steps in log.get(o["generation"], {}).items()
        if steps and max(steps) > o["at_step"] and o["at_step"] not in steps
    ]


def _unwanted(log: Log, names: Sequence[str], told: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was not applied is nowhere."""
    used = {
        (name, value)
        for ranks in log.values()
        for steps in ranks.values()
        for values in steps.values()
        for name, value in zip(names, values, strict=True)
    }
    wrong = []
    for operation in told:
        if operation["state"] == "applied":
            continue
        if operation["state"] != "not applied":
            wrong.append(f"change {operation['version']} is {operation['state']}: {operation['reason']}")
        elif any((name, float(value)) in used for name, value in operation["values"].items()):
            wrong.append(f"change {operation['version']} was reported as not applied, and was used")
    return wrong
