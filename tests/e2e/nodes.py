"""Several nodes on one machine: each with an agent, a home and spawners of its own, one NATS server for all.

Node `a` is `loom up` and has the control service too; the others are `loom agent`. A node can be lost as a
host is (everything of it is killed at once) and come back with the same home.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from forked import free_port
from stack import BIN, Stack, wait_until

from torchloom.bus.nats_binary import find_server

PATIENCE_S = 240.0
"""Only against a wait without end: a machine may stand still for seconds at any place."""


class Nodes:
    """`a`, which is up, and others beside it."""

    def __init__(self, root: Path, *others: str) -> None:
        self.root = root
        self.stacks = {name: Stack(root / name) for name in ("a", *others)}
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.lost: list[str] = []
        self.near = self.stacks["a"]
        self.address = "127.0.0.1"
        """Where the NATS server is."""
        self._server: subprocess.Popen[bytes] | None = None

    # -- the fleet ------------------------------------------------------------------------------------
    def start(self) -> None:
        port, store = free_port(), str(self.root / "js")
        server = [str(find_server()), "-js", "-sd", store, "-a", self.address, "-p", str(port)]
        with (self.root / "nats.log").open("wb") as log:
            self._server = subprocess.Popen(server, stdout=log, stderr=log)
        for name, stack in self.stacks.items():
            stack.env |= {"LOOM_NATS_URL": f"nats://{self.address}:{port}", "LOOM_NODE": name}
        self.near.up()
        for name in list(self.stacks)[1:]:
            self.begin(name)
        self.wait_ready(*self.stacks)

    def command(self, name: str) -> list[str]:
        """The agent of a node."""
        return [str(BIN / "loom"), "agent"]

    def begin(self, name: str) -> None:
        """Start the agent of a node."""
        stack = self.stacks[name]
        stack.home.root.mkdir(parents=True, exist_ok=True)
        with (self.root / f"agent-{name}.log").open("ab") as log:
            self.agents[name] = subprocess.Popen(self.command(name), env=stack.env, stdout=log, stderr=log)
        self.lost = [one for one in self.lost if one != name]

    def lose(self, name: str) -> None:
        """What happens to the processes of a host that loses its power."""
        victims = self.stacks[name].processes()
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self.agents[name].wait()
        self.lost.append(name)

    def confirm_gone(self, name: str) -> None:
        """A person's word, as soon as it is taken."""
        wait_until(lambda: self.view(name)["state"] == "unreachable", f"{name} is silent", PATIENCE_S)
        self.near.loom("node", "gone", name)

    def close(self) -> None:
        """End everything; nothing of any node may be left."""
        for name in self.lost:
            self.begin(name)  # what a lost host left behind is removed by its next agent
        try:
            self.near.loom("down", "--stop-jobs", check=None)
            for agent in self.agents.values():
                agent.terminate()
            for agent in self.agents.values():
                agent.wait(timeout=PATIENCE_S)
        finally:
            if self._server is not None:
                self._server.kill()
                self._server.wait()
        for stack in self.stacks.values():
            stack.wait_nothing_left()

    # -- looking --------------------------------------------------------------------------------------
    def view(self, name: str) -> dict[str, Any]:
        return next((one for one in self.near.json("nodes") if one["id"] == name), {})

    def wait_ready(self, *names: str) -> None:
        for name in names:
            wait_until(
                lambda name=name: self.view(name).get("state") == "ready", f"{name} is ready", PATIENCE_S
            )

    def status(self, job: str) -> dict[str, Any]:
        return self.near.status(job)

    def incidents(self, job: str, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.near.json("incidents", job) if one["kind"] == kind]

    def wait_on(self, job: str, places: list[str], *, generation: int | None = None) -> dict[str, Any]:
        """Until the job trains with rank 0, 1 … on these nodes."""

        def look() -> Any:
            found = self.status(job)
            on = [worker["node"] for worker in found["workers"]]
            trains = found["state"] == "running" and all(worker["steps"] for worker in found["workers"])
            new = generation is None or found["generation"] == generation
            return found if trains and new and on == places else None

        try:
            found: dict[str, Any] = wait_until(look, f"{job} trains on {places}", PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.status(job)}\n{self.near.logs()}\n{self.logs()}") from error
        assert [worker["rank"] for worker in found["workers"]] == list(range(len(places))), "ranks are dense"
        return found

    def worker_pid(self, job: str, node: str) -> int:
        (found,) = [one for one in self.status(job)["workers"] if one["node"] == node]
        return int(found["pid"])

    def logs(self) -> str:
        found = sorted(self.root.glob("agent-*.log"))
        return "\n".join(f"=== {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in found)


@contextlib.contextmanager
def several(*others: str) -> Iterator[Nodes]:
    with tempfile.TemporaryDirectory(prefix="loom-n-") as root:
        nodes = Nodes(Path(root), *others)
        try:
            nodes.start()
            yield nodes
        finally:
            nodes.close()


def freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
