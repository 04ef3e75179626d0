"""Control hosts in network namespaces are killed, hung and cut off, again and again: the job never notices.

Three control hosts with TLS (NATS and a weaver each) and two nodes. Each round takes one fault by the seed.
After every round: one weaver leads, the job has the same worker, generation and restarts as at the start, a
request is carried out, and at the end every acknowledged event is in the stream, once.

    LOOM_CHAOS_ROUNDS=5 LOOM_CHAOS_SEED=7 pytest -m long tests/integration/test_cluster_chaos.py -s
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
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
FAULTS = ("kill weaver", "kill nats", "kill host", "hang weaver", "cut host")

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(why_not()), reason=why_not())]


class Stage:
    """Three control hosts (0, 1, 2) and two nodes (3, 4), each in its own network namespace."""

    def __init__(self, hosts: Hosts, directory: Path) -> None:
        self.hosts = hosts
        made = directory / "prod"
        named = [f"--host={name}={hosts.address(place)}" for place, name in enumerate(NAMES)]
        command = [LOOM, "cluster", "init", str(made), *named, "--control-only"]
        subprocess.run(command, check=True, capture_output=True)
        self.homes: list[LoomHome] = []
        for name in (*NAMES, "n1", "n2"):
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

    def leaders(self, *hosts: int) -> list[int]:
        asked = {host: self.ask(host, "health") for host in hosts or range(3)}
        return [host for host, found in asked.items() if found is not None and found["active"]]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Hosts(5, name="loomc", network="10.78.0") as hosts:
        made = Stage(hosts, tmp_path)
        try:
            made.up(0, 1, 2)
            token = made.run(0, "node", "token", "--hosts", "2").split("--token ")[1].strip()
            for host in (3, 4):
                words = ("--token", token, "--node", f"n{host - 2}", "--slots", "1")
                made.run(host, "join", hosts.address(0), *words)
            yield made
        finally:
            for host in (3, 4, 0, 1, 2):
                hosts.mend(host)
            made.loom(0, "stop", "--kill", "sleeper").communicate(timeout=300)
            for host in (3, 4, 0, 1, 2):
                made.loom(host, "down", "--keep-jobs").communicate(timeout=300)


def test_nothing_that_happens_to_control_hosts_reaches_the_job(stage: Stage) -> None:
    chance = random.Random(SEED)
    print(f"seed {SEED}, {ROUNDS} rounds")
    words = ("--name", "sleeper", "--spawn", "cold", "--no-python", "sleep", "100000")
    stage.run(0, "submit", *words)
    wait_for(lambda: (stage.ask(0, "job", "sleeper") or {}).get("running_workers"), "the job runs")
    first = stage.ask(0, "job", "sleeper")
    pid = first["workers"][0]["pid"]
    ticks = start_ticks(pid)
    new_leader_s: list[float] = []
    decision_s: list[float] = []
    acknowledged = []
    for number in range(ROUNDS):
        leader = wait_for(lambda: stage.leaders(), "one weaver leads")[0]
        fault = chance.choice(FAULTS)
        victim = leader if chance.random() < 0.7 else chance.randrange(3)
        others = [host for host in range(3) if host != victim]
        began = time.monotonic()
        undo = _do(stage, fault, victim)
        # A part that was killed alone is back in a moment, and may lead again.
        may_lead = range(3) if fault in ("kill weaver", "kill nats") else others
        leads = wait_for(lambda may=may_lead: stage.leaders(*may), f"round {number}: {fault}: a leader")
        if victim == leader:
            new_leader_s.append(time.monotonic() - began)
        assert len(leads) == 1, f"round {number}: {fault} on {victim}: {leads} lead"
        why = f"round {number}"

        def decided(why: str = why, others: list[int] = others) -> bool:
            return any(
                stage.ask(host, "drain_node", "n2", {"why": why, "keep": True, "force": False})
                for host in others
            )

        wait_for(decided, f"round {number}: {fault}: a request is carried out")
        decision_s.append(time.monotonic() - began)
        acknowledged.append(why)
        undo()
        wait_for(
            lambda: all((stage.ask(host, "health") or {}).get("ready") for host in range(3)),
            f"round {number}: {fault}: all control hosts are back",
        )
        assert is_alive(pid, ticks), f"round {number}: {fault}: the worker lives"
        now = wait_for(lambda at=leads[0]: stage.ask(at, "job", "sleeper"), "the job's state")
        for same in ("generation", "restarts", "state"):
            assert now[same] == first[same], f"round {number}: {fault} on {victim}: {same}"
        assert [one["pid"] for one in now["workers"]] == [pid]
        print(
            f"round {number}: {fault} on {NAMES[victim]}{' (leader)' if victim == leader else ''}: "
            f"decision after {decision_s[-1]:.1f} s"
        )
    found = json.dumps(stage.run(0, "events", "--json"))
    for why in acknowledged:
        assert why in found, f"the acknowledged request of {why} is in the stream"
    for name, values in (("new leader", new_leader_s), ("next decision", decision_s)):
        if len(values) > 1:
            cuts = statistics.quantiles(values, n=100, method="inclusive")
            print(
                f"{name}: p50 {cuts[49]:.2f} s, p90 {cuts[89]:.2f} s, p99 {cuts[98]:.2f} s, n = {len(values)}"
            )


def _do(stage: Stage, fault: str, victim: int) -> Any:
    """Do it; how to undo it."""
    home = stage.homes[victim]
    match fault:
        case "kill weaver" | "kill nats":
            home.kill(fault.split()[1])
            return lambda: None  # its supervisor starts it again
        case "kill host":
            for part in ("supervisor", "weaver", "nats"):
                home.kill(part)
            return lambda: stage.up(victim)
        case "hang weaver":
            pid = home.pid("weaver")
            os.kill(pid, signal.SIGSTOP)
            return lambda: os.kill(pid, signal.SIGCONT)
        case _:
            stage.hosts.cut(victim)
            return lambda: stage.hosts.mend(victim)
