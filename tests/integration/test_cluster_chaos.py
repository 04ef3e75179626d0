"""Hosts in network namespaces are killed, hung, slowed and cut off, again and again, under a real training.

Three control hosts with TLS (NATS and a weaver each) and four nodes with one rank each. Each round takes one
fault by the seed. After every round: a request is carried out, one weaver leads, the job trains with the same
workers, generation and restarts as at the start. At the end every acknowledged request is in the stream, and
no rank did a step twice. Not drawn: jumps of a clock (network namespaces share the host's) and full disks
(test_small_disk.py has one).

    LOOM_CHAOS_ROUNDS=5 LOOM_CHAOS_SEED=7 pytest -m long tests/integration/test_cluster_chaos.py -s
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from control_hosts import NAMES
from loom_home import LOOM, LoomHome, wait_for

from torchloom.agent.processes.process import is_alive, start_ticks
from torchloom.chaos.hosts import Hosts, why_not
from torchloom.client import Client, Endpoint
from torchloom.errors import LoomError

ROUNDS = int(os.environ.get("LOOM_CHAOS_ROUNDS", "200"))
SEED = int(os.environ.get("LOOM_CHAOS_SEED", "1"))
ON_CONTROL = ("kill weaver", "kill nats", "kill host", "hang weaver", "cut host", "slow host", "halves")
ON_NODES = ("kill agent", "cut node", "cut node from control", "slow node")
CONTROL, NODES = range(3), range(3, 7)
SLOW_BYTES_S = 200_000
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
        notes.write(f"{os.environ['LOOM_GENERATION']} {dist.get_rank()} {step}\\n")
        time.sleep(0.2)
"""

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(why_not()), reason=why_not())]


class Stage:
    """Three control hosts (0, 1, 2) and four nodes (3 to 6), each in its own network namespace."""

    def __init__(self, hosts: Hosts, directory: Path) -> None:
        self.hosts = hosts
        made = directory / "prod"
        named = [f"--host={name}={hosts.address(place)}" for place, name in enumerate(NAMES)]
        command = [LOOM, "cluster", "init", str(made), *named, "--control-only"]
        subprocess.run(command, check=True, capture_output=True)
        self.homes: list[LoomHome] = []
        for name in (*NAMES, "n1", "n2", "n3", "n4"):
            root = directory / name
            root.mkdir(mode=0o700)
            if name in NAMES:
                (made / name).rename(root / "cluster")
            self.homes.append(LoomHome(root))

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

    def up(self, *hosts: int) -> None:
        started = [(self.loom(host, "up"), host) for host in hosts]
        for process, host in started:
            self.done(process, host)

    def ask(self, host: int, what: str, *words: Any) -> Any:
        """One request to the service of a control host; None if it does not answer."""

        def asked() -> Any:
            # Without a look at who owns the other end: /proc shows the network of the main thread.
            api = Client(replace(Endpoint.of_home(self.homes[host].home), owner=None), timeout_s=2.0)
            try:
                return getattr(api, what)(*words)
            except LoomError:
                return None
            finally:
                api.close()

        return self.hosts.call(host, asked)

    def all_ready(self) -> bool:
        return all((self.ask(host, "health") or {}).get("ready") for host in CONTROL)

    def leaders(self, *hosts: int) -> list[int]:
        asked = {host: self.ask(host, "health") for host in hosts or range(3)}
        return [host for host, found in asked.items() if found is not None and found["active"]]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Hosts(7, name="loomc", network="10.78.0") as hosts:
        made = Stage(hosts, tmp_path)
        try:
            made.up(0, 1, 2)
            wait_for(made.all_ready, "all control hosts are ready")
            token = made.run(0, "node", "token", "--hosts", "4").split("--token ")[1].strip()
            for host in NODES:
                words = ("--token", token, "--node", f"n{host - 2}", "--slots", "1")
                made.run(host, "join", hosts.address(0), *words)
            yield made
        finally:
            for host in (*NODES, *CONTROL):
                hosts.mend(host)
            made.loom(0, "stop", "--kill", "train").communicate(timeout=300)
            for host in (*NODES, *CONTROL):
                made.loom(host, "down", "--keep-jobs").communicate(timeout=300)


def test_nothing_that_happens_to_hosts_restarts_the_job(stage: Stage, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    print(f"seed {SEED}, {ROUNDS} rounds", flush=True)
    notes, script = tmp_path / "notes", tmp_path / "train.py"
    script.write_text(SCRIPT)
    stage.run(0, "submit", "--name", "train", "--nnodes", "4", str(script), str(notes))
    wait_for(lambda: _steps(notes) > 8, "the job trains")
    first = wait_for(lambda: stage.ask(0, "job", "train"), "the job")
    pids = {one["pid"]: start_ticks(one["pid"]) for one in first["workers"]}
    assert len(pids) == 4
    times: dict[str, list[float]] = {"new leader": [], "next decision": []}
    acknowledged: list[str] = []
    for number in range(ROUNDS):
        leader = wait_for(lambda: stage.leaders(), "one weaver leads")[0]
        fault, victim = _draw(chance, leader)
        what = f"round {number}: {fault} on {stage.homes[victim].home.root.name}"
        what += " (leader)" if victim == leader else ""
        others = [host for host in CONTROL if host != victim]
        began = time.monotonic()
        undo = _do(stage, fault, victim)
        # A part that was killed alone is back in a moment, and may lead again; a slow one may keep the lead.
        gone = fault in ("kill host", "hang weaver", "cut host", "halves")
        wait_for(lambda may=others if gone else CONTROL: stage.leaders(*may), f"{what}: a leader")
        if gone and victim == leader:
            times["new leader"].append(time.monotonic() - began)
        why = f"round {number} of seed {SEED}"

        def decided(why: str = why, asked: list[int] = others) -> bool:
            body = {"why": why, "keep": True, "force": False}
            return any(stage.ask(host, "drain_node", "n2", body) for host in asked)

        wait_for(decided, f"{what}: a request is carried out")
        times["next decision"].append(time.monotonic() - began)
        acknowledged.append(why)
        undo()
        wait_for(stage.all_ready, f"{what}: all control hosts are back")
        at = wait_for(lambda: (found := stage.leaders()) and len(found) == 1 and found, f"{what}: one leads")
        done = _steps(notes)
        wait_for(lambda done=done: _steps(notes) > done + 8, f"{what}: training continues")
        for pid, ticks in pids.items():
            assert is_alive(pid, ticks), f"{what}: worker {pid} lives"
        now = wait_for(lambda at=at[0]: stage.ask(at, "job", "train"), "the job's state")
        for same in ("generation", "restarts", "state"):
            assert now[same] == first[same], f"{what}: {same} is {now[same]}: {now['reason']}"
        assert {one["pid"] for one in now["workers"]} == set(pids), what
        print(f"{what}: decision after {times['next decision'][-1]:.1f} s", flush=True)
    lines = notes.read_text().splitlines()
    assert len(set(lines)) == len(lines), "no rank did a step twice"
    found = stage.run(0, "events", "--json")
    for why in acknowledged:
        assert why in found, f"the acknowledged request of {why} is in the stream"
    for name, values in times.items():
        if len(values) > 1:
            cuts = statistics.quantiles(values, n=100, method="inclusive")
            shown = ", ".join(f"p{p} {cuts[p - 1]:.2f} s" for p in (50, 90, 99))
            print(f"{name}: {shown}, n = {len(values)}", flush=True)


def _steps(notes: Path) -> int:
    return len(notes.read_text().splitlines()) if notes.exists() else 0


def _draw(chance: random.Random, leader: int) -> tuple[str, int]:
    """Two thirds of the faults are on control hosts, most of these on the leader's."""
    if chance.random() < 0.65:
        return chance.choice(ON_CONTROL), leader if chance.random() < 0.7 else chance.randrange(3)
    return chance.choice(ON_NODES), chance.choice(NODES)


def _do(stage: Stage, fault: str, victim: int) -> Callable[[], object]:
    """Do it; how to undo it."""
    home, hosts = stage.homes[victim], stage.hosts
    match fault:
        case "kill weaver" | "kill nats" | "kill agent":
            home.kill(fault.split()[1])
            return lambda: None  # its supervisor starts it again
        case "kill host":
            for part in ("supervisor", "weaver", "nats"):
                home.kill(part)
            return lambda: stage.up(victim)
        case "hang weaver":
            pid = home.pid("weaver")
            os.kill(pid, signal.SIGSTOP)
            return lambda: _wake(pid)
        case "slow host" | "slow node":
            _limit(hosts, victim, SLOW_BYTES_S)
            return lambda: _limit(hosts, victim, 0)
        case "halves":  # the victim with two nodes on one side, two control hosts with two nodes on the other
            one = (victim, *list(NODES)[:2])
            for host in one:
                hosts.cut(host, [other for other in (*CONTROL, *NODES) if other not in one])
            return lambda: [hosts.mend(host) for host in one]
        case "cut node from control":
            hosts.cut(victim, list(CONTROL))
            return lambda: hosts.mend(victim)
        case _:
            hosts.cut(victim)
            return lambda: hosts.mend(victim)


def _limit(hosts: Hosts, victim: int, bytes_per_s: int) -> None:
    for other in (*CONTROL, *NODES):
        if other != victim:
            hosts.limit(victim, other, bytes_per_s)
            hosts.limit(other, victim, bytes_per_s)


def _wake(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # its supervisor may have replaced it
        os.kill(pid, signal.SIGCONT)
