"""A sharded training on a ring of hosts whose states are copied to neighbours, and what a test does to it.

Owns the job and the questions about its memory. The hosts are `cut_nodes`; some may have a small /dev/shm.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from cut_nodes import CutNodes
from nodes import PATIENCE_S
from runs import Run
from stack import wait_until

from torchloom.agent.neighbour.slot_transfer import copied_slots
from torchloom.checkpoint.memory import tier

NEVER = "100000"
"""Steps between saves to the store: it stays empty."""


class Ringed:
    """One job, with a rank on each of its nodes; a node's copies are on the next one."""

    def __init__(
        self,
        fleet: CutNodes,
        work: Path,
        world: int,
        *more: str,
        standby: int = 0,
        every: str = NEVER,
        steps: int = 60,
    ) -> None:
        self.fleet, self.store, self.world, self._steps = fleet, work / "store", world, steps
        self._arguments = ("--fsdp", "--every", every, "--step-ms", "20", *more)
        self.run = self.train(work / "disturbed", self.store, standby)
        self.job = self.run.job

    def train(self, out: Path, store: Path, standby: int = 0) -> Run:
        flags = ("--nnodes", str(self.world), "--standby", str(standby))
        args = ("--dir", str(store), *self._arguments)
        near = self.fleet.near
        return Run(near, out, self.world, self._steps, *args, until=8, per_node=1, flags=flags)

    def begin(self) -> list[str]:
        """The nodes of the ranks, once it trains."""

        def look() -> list[str]:
            found = self.fleet.status(self.job)
            trains = found["state"] == "running" and all(worker["steps"] for worker in found["workers"])
            return [worker["node"] for worker in found["workers"]] if trains else []

        nodes: list[str] = wait_until(look, f"{self.job} trains", PATIENCE_S)
        assert len(set(nodes)) == self.world, nodes
        return nodes

    # -- its memory -----------------------------------------------------------------------------------
    def folder(self, node: str) -> Path:
        """The memory tier, as the agent of the node sees it: it may have a /dev/shm of its own."""
        inside = tier.directory(self.fleet.stacks[node].home.boxes, self.job)
        agent = self.fleet.agents[node]
        return Path(f"/proc/{agent.pid}/root{inside}") if agent.poll() is None else inside

    def copied(self, node: str, rank: int) -> int:
        """The newest step of a rank of another node that this node keeps; 0: none."""
        return max((slot.header.name.step for slot in copied_slots(self.folder(node), rank)), default=0)

    def copied_everywhere(self, nodes: list[str]) -> int:
        """The newest step that is at the neighbours of all."""
        steps = [
            {slot.header.name.step for slot in copied_slots(self.folder(keeper), rank)}
            for rank, keeper in enumerate([*nodes[1:], nodes[0]])
        ]
        return max(set.intersection(*steps), default=0)

    def wait_copied(self, nodes: list[str], after: int = 0) -> int:
        self.run.creep(lambda: self.copied_everywhere(nodes) > after, "all ranks are copied")
        return self.copied_everywhere(nodes)

    def missing_copies(self, *texts: str) -> str:
        """A line of `loom status` about missing copies with these words; empty: there is none."""
        lines = self.fleet.near.loom("status", self.job).stdout.splitlines()
        found = [line for line in lines if "would be lost with the node" in line]
        return next((line for line in found if all(text in line for text in texts)), "")

    def wait_freed(self, *nodes: str) -> None:
        for node in nodes:
            boxes = self.folder(node).parent
            wait_until(lambda boxes=boxes: not list(tier.found_in(boxes)), f"{node} is free", PATIENCE_S)

    # -- what happens ---------------------------------------------------------------------------------
    def lose(self, *names: str, with_memory: bool = True) -> int:
        """These hosts at once, and a person says so; the step that was reached."""
        reached = self.run.lines(self.world - 1)[-1][1]
        for name in names:
            self.fleet.cut(name)
        for name in names:
            self.fleet.lose(name)
            if with_memory:
                shutil.rmtree(self.fleet.stacks[name].home.boxes, ignore_errors=True)
        for name in names:
            self.fleet.confirm_gone(name)
        return reached

    def returns(self, *names: str) -> None:
        for name in names:
            self.fleet.mend(name)
            self.fleet.begin(name)
        self.fleet.wait_ready(*names)

    def kill_agent(self, name: str) -> None:
        """The agent alone; what it started lives."""
        agent = self.fleet.agents[name]
        agent.send_signal(signal.SIGKILL)
        agent.wait()

    def end(self) -> None:
        """Without its last steps: with a large state they take long."""
        self.fleet.near.loom("stop", "--kill", self.job)

    def resumed(self) -> list[tuple[int, str]]:
        """(step, where from) of every life but the first."""
        log = self.fleet.near.loom("logs", self.job).stdout.splitlines()
        told = [line.partition("resumed after step ")[2].split() for line in log]
        return [(int(words[0]), words[2] if words[2] == "memory" else "store") for words in told if words]
