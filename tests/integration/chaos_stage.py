"""Three control hosts with TLS (0, 1, 2) and four nodes (3 to 6), each a network namespace, to try faults on.

Each host has its home on a small disk of its own. Owns the hosts, how they are asked, and the training that
runs on the nodes.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from control_hosts import NAMES
from disks import small_disk
from loom_home import LOOM, LoomHome, wait_for

from torchloom.bus.nats import NatsBus
from torchloom.bus.nats_config import EVENT_STREAM, LEASE_BUCKET, OBJECT_BUCKET
from torchloom.bus.nats_stream import api as jetstream
from torchloom.bus.protocol import Record
from torchloom.chaos.hosts import Hosts
from torchloom.cli.cluster.host_files import ClusterHost
from torchloom.client import Client, Endpoint
from torchloom.errors import LoomError

CONTROL, NODES = range(3), range(3, 7)
NODE_NAMES = ("n1", "n2", "n3", "n4")
DISK_MB = 192
ASK_WITHIN_S = 2.0
SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
with open(sys.argv[1], "a", buffering=1) as notes:
    while True:
        step += 1
        optimizer.zero_grad()
        model(torch.randn(4, 8)).pow(2).mean().backward()
        optimizer.step()
        lr = optimizer.param_groups[0]["lr"]
        notes.write(f"{os.environ['LOOM_GENERATION']} {dist.get_rank()} {step} {lr}\\n")
        time.sleep(0.1)
"""


class Stage:
    def __init__(self, hosts: Hosts, directory: Path, undo: ExitStack) -> None:
        self.hosts = hosts
        self.directory = directory
        made = directory / "prod"
        named = [f"--host={name}={hosts.address(place)}" for place, name in enumerate(NAMES)]
        command = [LOOM, "cluster", "init", str(made), *named, "--control-only"]
        subprocess.run(command, check=True, capture_output=True)
        self.homes: list[LoomHome] = []
        self._threads: list[ThreadPoolExecutor] = []
        self._clients: dict[int, Client] = {}
        for host, name in enumerate((*NAMES, *NODE_NAMES)):
            root = undo.enter_context(small_disk(directory / name, DISK_MB))
            root.chmod(0o700)
            if name in NAMES:
                subprocess.run(["cp", "-r", str(made / name), str(root / "cluster")], check=True)
            self.homes.append(LoomHome(root, LOOM_HUNG_AFTER_S="12"))
            thread = ThreadPoolExecutor(1, initializer=hosts.enter, initargs=(host,))
            self._threads.append(thread)
            undo.callback(thread.shutdown)

    # -- commands -----------------------------------------------------------------------------------
    def loom(self, host: int, *words: str) -> subprocess.Popen[str]:
        return self.hosts.start(
            host,
            [LOOM, *words],
            env=self.homes[host].env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, host: int, *words: str) -> str:
        return self.done(self.loom(host, *words), host)

    def done(self, process: subprocess.Popen[str], host: int) -> str:
        out = process.communicate(timeout=300)[0]
        assert process.returncode == 0, f"{out}\n{self.homes[host].logs()}"
        return out

    def start(self, *hosts: int) -> None:
        """Start what hosts run, or a supervisor for what still runs there."""
        started = [(self.loom(host, "up" if host in CONTROL else "join"), host) for host in hosts]
        for process, host in started:
            self.done(process, host)

    # -- questions ----------------------------------------------------------------------------------
    def later(self, host: int, what: str, *words: Any) -> Future[Any]:
        """One request to the service of a control host; the answer is None if it does not answer."""

        def asked() -> Any:
            try:
                if host not in self._clients:
                    # Without a look at who owns the other end: /proc shows the network of the main thread.
                    where = replace(Endpoint.of_home(self.homes[host].home), owner=None)
                    self._clients[host] = Client(where, timeout_s=ASK_WITHIN_S)
                return getattr(self._clients[host], what)(*words)
            except LoomError:
                if host in self._clients:
                    self._clients.pop(host).close()
                return None

        return self._threads[host].submit(asked)

    def ask(self, host: int, what: str, *words: Any) -> Any:
        return self.later(host, what, *words).result()

    def health(self, *hosts: int) -> dict[int, Any]:
        asked = {host: self.later(host, "health") for host in hosts or CONTROL}
        return {host: found for host, one in asked.items() if (found := one.result()) is not None}

    def leaders(self, *hosts: int) -> list[tuple[int, int]]:
        """The hosts whose weaver leads, each with that weaver's process."""
        pids = {host: self.homes[host].pid("weaver") for host in CONTROL}
        return [(host, pids[host]) for host, one in self.health(*hosts).items() if one["active"]]

    def healed(self) -> str:
        """What is not as it was before any fault; empty if everything is."""
        found = self.health()
        if len(found) < 3 or not all(one["ready"] for one in found.values()):
            return f"health is {found}"
        leading = [host for host, one in found.items() if one["active"]]
        if len(leading) != 1:
            return f"{leading} lead"
        nodes = {one["id"]: one["state"] for one in self.ask(leading[0], "nodes") or ()}
        if nodes != dict.fromkeys(NODE_NAMES, "ready"):
            return f"nodes are {nodes}"
        return self._copies(leading[0])

    def _copies(self, host: int) -> str:
        """Which copies of what the bus stores are missing or behind."""

        async def look() -> str:
            bus = await NatsBus.connect(self._bus(host), name="chaos")
            try:
                for stream in (EVENT_STREAM, f"KV_{LEASE_BUCKET}", f"OBJ_{OBJECT_BUCKET}"):
                    info = await jetstream(bus._link, f"STREAM.INFO.{stream}", None, 2.0)
                    copies = info["cluster"].get("replicas", [])
                    good = [one for one in copies if one["current"] and not one.get("offline")]
                    if not info["cluster"].get("leader") or len(good) < 2:
                        return f"copies of {stream} are {info['cluster']}"
                return ""
            except LoomError as error:
                return str(error)
            finally:
                await bus.close()

        return self._threads[host].submit(lambda: asyncio.run(look())).result()

    def events(self, host: int, after: int) -> list[Record]:
        """What the stream has stored after this sequence."""

        async def read() -> list[Record]:
            bus, found = await NatsBus.connect(self._bus(host), name="chaos", wait_s=60.0), []
            try:
                last = await bus.last_seq()
                if last > after:
                    async with aclosing(bus.read(after)) as records:
                        async for record in records:
                            found.append(record)
                            if record.seq >= last:
                                break
                return found
            finally:
                await bus.close()

        return self._threads[host].submit(lambda: asyncio.run(read())).result()

    def _bus(self, host: int) -> Any:
        found = ClusterHost.read(self.homes[host].home)
        assert found is not None
        return found.bus("weaver", "chaos")


@contextmanager
def running_stage(directory: Path, network: str) -> Iterator[Stage]:
    """Everything runs and all nodes have joined; in the end everything is stopped."""
    with Hosts(7, name="loomc", network=network) as hosts, ExitStack() as undo:
        made = Stage(hosts, directory, undo)
        try:
            made.start(*CONTROL)
            token = made.run(0, "node", "token", "--hosts", "4").split("--token ")[1].strip()
            joining = []
            for host, name in zip(NODES, NODE_NAMES, strict=True):
                words = ("--token", token, "--node", name, "--slots", "1")
                joining.append((made.loom(host, "join", hosts.address(0), *words), host))
            for process, host in joining:
                made.done(process, host)
            wait_for(lambda: not made.healed(), "everything runs")
            yield made
        finally:
            for host in (*NODES, *CONTROL):
                hosts.mend(host)
            made.loom(0, "stop", "--kill", "train").communicate(timeout=300)
            ending = [made.loom(host, "down", "--keep-jobs") for host in NODES]
            for process in ending:
                process.communicate(timeout=300)
            ending = [made.loom(host, "down", "--keep-jobs") for host in CONTROL]
            for process in ending:
                process.communicate(timeout=300)
            for host in NODES:  # kept for an agent that will not come: the homes are temporary
                shutil.rmtree(made.homes[host].home.boxes, ignore_errors=True)


class Training:
    """A job with one rank on each node, and what its ranks wrote: which step, with which learning rate."""

    def __init__(self, stage: Stage) -> None:
        self._file = stage.directory / "notes"
        self._read = 0
        self._rates: dict[int, str] = {}
        self.steps = dict.fromkeys(range(4), 0)
        script = stage.directory / "train.py"
        script.write_text(SCRIPT)
        stage.run(0, "submit", "--name", "train", "--nnodes", "4", str(script), str(self._file))
        wait_for(lambda: self.slowest() > 3, "the job trains")

    def slowest(self) -> int:
        """The last step that all ranks have made. Each rank makes each step once, with one learning rate."""
        if self._file.exists():
            with self._file.open("rb") as file:
                file.seek(self._read)
                whole, _, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + 1 if whole else 0
            for line in whole.decode().splitlines():
                _, rank, step, rate = line.split()
                assert int(step) == self.steps[int(rank)] + 1, f"rank {rank} made step {step}: {self.steps}"
                self.steps[int(rank)] = int(step)
                assert self._rates.setdefault(int(step), rate) == rate, f"step {step}, rank {rank}: lr {rate}"
        return min(self.steps.values())

    def rate(self) -> float:
        return float(self._rates[self.slowest()])
