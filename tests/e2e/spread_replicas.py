"""A torchft job whose replicas are on several nodes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from nodes import Nodes
from replica_runs import Replicas, started
from stack import SCRIPTS, lines_of

SCRIPT = SCRIPTS / "torchft_exact.py"


class Spread(Replicas):
    """Replicas whose logs are on the nodes on which they run."""

    def __init__(self, nodes: Nodes, name: str, size: int) -> None:
        super().__init__(nodes.near, name, size)
        self.nodes = nodes

    def lines(self, index: int, rank: int = 0) -> list[str]:
        homes = [stack.home.jobs_dir for stack in self.nodes.stacks.values()]
        return [line for home in homes for line in lines_of(home / self.jobs[index] / f"rank-{rank}.log")]

    def one_history(self) -> set[int]:
        """No two of them ever have different weights after the same step. Returns the steps."""
        weights: dict[int, str] = {}
        for index in range(len(self.jobs)):
            for line in self.lines(index):
                if found := re.match(r"step (\d+) .* has (\w+)", line):
                    assert weights.setdefault(int(found[1]), found[2]) == found[2], (index, line)
        return set(weights)

    def places(self) -> list[str]:
        return [self.stack.status(job)["workers"][0]["node"] for job in self.jobs]

    def pids(self) -> list[int]:
        return [self.pid(index) for index in range(len(self.jobs))]


def spread(
    fleet: Nodes,
    name: str,
    size: int,
    least: int,
    *more: str,
    steps: int = 1_000_000,
    script: Path = SCRIPT,
) -> Spread:
    """One that trains. `least`: replicas without which no step is committed."""

    def made(stack: object, name: str, size: int) -> Spread:
        return Spread(fleet, name, size)

    flags = ("--min-replicas", str(least), "--env", f"LEAST={least}", *more)
    job = started(fleet.near, name, size=size, steps=steps, script=script, flags=flags, made=made)
    assert isinstance(job, Spread)
    return job


def lighthouses(fleet: Nodes, node: str) -> list[int]:
    return fleet.stacks[node].lighthouses()


def plain(steps: int, replicas: int) -> set[str]:
    """The weights of the same training in one process, without torchft."""
    env = {**os.environ, "MAX_STEPS": str(steps), "NUM_REPLICA_GROUPS": str(replicas)}
    done = subprocess.run([sys.executable, str(SCRIPT), "plain"], env=env, capture_output=True, text=True)
    return set(re.findall(r"weights (\w+)", done.stdout))
