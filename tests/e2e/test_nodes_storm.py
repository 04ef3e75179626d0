"""Nodes, agents and workers killed and stopped at random for minutes: a job with a standby that allows
self-fencing always trains again by itself, and no step is ever made by two generations at once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from nodes import PATIENCE_S, Nodes, freeze, several
from stack import lines_of, wait_until

SEED = int(os.environ.get("LOOM_TEST_SEED", "7"))
ROUNDS = int(os.environ.get("LOOM_TEST_KILLS", "10"))


class Storm:
    def __init__(self, nodes: Nodes, work: Path) -> None:
        self.nodes, self.notes, self.chance = nodes, work / "notes", random.Random(SEED)
        (work / "policy.toml").write_text("self_fence_s = 5\n")
        flags = ("--nnodes", "2", "--standby", "1", "--max-restarts", "1000")
        self.job = nodes.near.submit(
            "saves.py",
            str(self.notes),
            str(work / "store"),
            workers=1,
            flags=(*flags, "--policy", str(work / "policy.toml")),
        )

    def rows(self) -> list[tuple[int, int, int]]:
        """Generation, rank and step, in the order in which they were written."""
        found = [line.split() for line in lines_of(self.notes)]
        return [(int(generation), int(rank), int(step)) for generation, rank, step in found]

    def wait_trains(self) -> None:
        """Until both ranks of the newest generation have made ten steps more."""
        before = len(self.rows())

        def trains() -> bool:
            new = self.rows()[before:]
            newest = max((row[0] for row in new), default=0)
            return all(sum(row[:2] == (newest, rank) for row in new) >= 10 for rank in (0, 1))

        try:
            wait_until(trains, "it trains again", PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.nodes.status(self.job)}\n{self.nodes.logs()}") from error

    # -- what happens -----------------------------------------------------------------------------
    def lose_a_node(self) -> None:
        name = self.chance.choice(["b", "c"])
        self.nodes.lose(name)
        self.wait_trains()
        self.nodes.begin(name)
        self.nodes.wait_ready(name)

    def stop_an_agent(self) -> None:
        pid = self.nodes.agents[self.chance.choice(["b", "c"])].pid
        freeze(pid)
        try:
            self.wait_trains()
        finally:
            os.kill(pid, signal.SIGCONT)
        self.nodes.wait_ready("b", "c")

    def kill_an_agent(self) -> None:
        name = self.chance.choice(["b", "c"])
        self.nodes.agents[name].kill()
        self.nodes.agents[name].wait()
        self.nodes.begin(name)
        self.nodes.wait_ready(name)

    def kill_a_worker(self) -> None:
        found = self.nodes.status(self.job)["workers"]
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(self.chance.choice(found)["pid"]).kill()

    def kill_the_service(self) -> None:
        self.nodes.near.kill_part("weaver")

    def check_order(self) -> None:
        """A rank has one life at a time, and none goes on further than one step after what another made."""
        for rank in (0, 1):
            rows = [row for row in self.rows() if row[1] == rank]
            lives = [row[0] for row in rows]
            assert lives == sorted(lives), f"rank {rank} had two lives at once"
            made = 0
            for _, _, step in rows:
                assert step <= made + 1, f"rank {rank} left out steps before {step}"
                made = max(made, step)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_job_outlives_a_storm_of_kills(tmp_path: Path) -> None:
    with several("b", "c") as nodes:
        storm = Storm(nodes, tmp_path)
        storm.wait_trains()
        moves: list[Callable[[], None]] = [
            storm.lose_a_node,
            storm.stop_an_agent,
            storm.kill_an_agent,
            storm.kill_a_worker,
            storm.kill_the_service,
        ]
        done = []
        for _ in range(ROUNDS):
            move = storm.chance.choice(moves)
            done.append(move.__name__)
            move()
            storm.wait_trains()
            storm.check_order()
        print(f"seed {SEED}: {', '.join(done)}; {storm.rows()[-1]}")
        assert nodes.status(storm.job)["state"] == "running"
        nodes.near.loom("stop", storm.job)
        nodes.near.wait_state(storm.job, "stopped")
