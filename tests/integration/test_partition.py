"""Two real agents, real NATS, real processes, and a link that fails: only proof of death restarts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gate_proxy import GateProxy
from plain_nats import plain_nats

from torchloom.agent.main import serve
from torchloom.agent.processes.process import is_alive, start_ticks
from torchloom.bus.address import BusAddress
from torchloom.bus.nats import NatsBus
from torchloom.core.invariants import broken
from torchloom.errors import Conflict, NotFound, UsageError
from torchloom.home import Home
from torchloom.model.faults import Fault
from torchloom.model.fleet import Job, JobState, NodeState
from torchloom.model.job import JobSpec, Program, SpawnMode
from torchloom.model.policy import Policy
from torchloom.weaver.service import Weaver

SLEEPER = "import time\nwhile True: time.sleep(0.1)\n"
WITHIN_S = 150.0


async def until(condition: Callable[[], Any], what: str, within_s: float = WITHIN_S) -> Any:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {within_s:g} s: {what}")


@pytest.fixture
def nats_port(tmp_path: Path) -> Iterator[int]:
    """A server without credentials, as an outside one may be: two agents of different names use it."""
    with plain_nats(tmp_path, jetstream=tmp_path / "js") as port:
        yield port


class Fleet:
    """A weaver, node a beside it, and node b behind a gate."""

    def __init__(self, weaver: Weaver, gate: GateProxy, homes: dict[str, Home]) -> None:
        self.weaver, self.gate, self.homes = weaver, gate, homes

    @property
    def job(self) -> Job:
        return self.weaver.fleet.jobs["j"]

    def node(self, name: str = "b") -> NodeState:
        return self.weaver.fleet.nodes[name].state

    def processes(self) -> list[tuple[int, int]]:
        """Pids of the workers, with what tells them from later users of the same numbers."""
        return [(worker.pid, start_ticks(worker.pid)) for worker in self.job.workers]

    async def running(self, generation: int) -> None:
        def runs() -> bool:
            return self.job.state is JobState.RUNNING and self.job.generation == generation

        await until(runs, f"generation {generation} runs: {self.job.state}, {self.job.reason}")


@contextlib.asynccontextmanager
async def fleet(port: int, work: Path) -> AsyncIterator[Fleet]:
    gate = GateProxy(port)
    stop = asyncio.Event()
    buses: list[NatsBus] = []
    tasks: list[asyncio.Task[None]] = []
    homes: dict[str, Home] = {}

    async def bus(at: int, name: str) -> NatsBus:
        address = BusAddress((f"nats://127.0.0.1:{at}",), "", "")
        buses.append(await NatsBus.connect(address, name=name, wait_s=WITHIN_S))
        return buses[-1]

    with tempfile.TemporaryDirectory(prefix="loom-part-") as root:
        weaver = Weaver(await bus(port, "weaver"))
        tasks.append(asyncio.create_task(weaver.run(stop)))
        for node, at, slots in (("a", port, 2), ("b", gate.port, 4)):
            home = homes[node] = Home(Path(root) / node)
            home.prepare()
            link = await bus(at, node)
            agent = serve(home, node, link, stop=stop, prewarm=False, max_workers=slots)
            tasks.append(asyncio.create_task(agent))
        try:
            await until(lambda: weaver.active and len(weaver.fleet.nodes) == 2, "both nodes joined")
            yield Fleet(weaver, gate, homes)
            await weaver.stop("j", "ann", kill=True)
            await until(lambda: weaver.fleet.jobs["j"].ended, "the job has ended")
            await until(lambda: not weaver.fleet.outbox, f"all is done: {weaver.fleet.outbox}")
        finally:
            gate.open()
            stop.set()
            await asyncio.wait(tasks, timeout=WITHIN_S)
            for one in buses:
                await one.close()
            gate.close()
        for task in tasks:
            task.result()


async def start(
    on: Fleet, work: Path, spawn: SpawnMode = "cold", standby: int = 0, policy: Policy | None = None
) -> None:
    script = work / "sleeper.py"
    script.write_text(SLEEPER)
    program = Program("command", sys.executable, (str(script),))
    spec = JobSpec(
        program=program,
        cwd=str(work),
        workers_per_node=2,
        spawn=spawn,
        standby=standby,
        policy=policy or Policy(),
        stop_grace_s=1.0,
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOOM_")}
    await on.weaver.submit("j", spec, env, "ann")
    await on.running(1)
    assert {worker.node for worker in on.job.workers} == {"b"}, "the emptier one"


@pytest.mark.parametrize("silently", [False, True], ids=["cut", "black hole"])
def test_a_partition_restarts_nothing_and_a_host_said_to_be_gone_is_replaced_and_fenced(
    nats_port: int, tmp_path: Path, silently: bool
) -> None:
    asyncio.run(_live_through(nats_port, tmp_path, silently))


async def _live_through(nats_port: int, tmp_path: Path, silently: bool) -> None:
    async with fleet(nats_port, tmp_path) as on:
        await start(on, tmp_path)
        weaver, old = on.weaver, on.processes()
        with pytest.raises(Conflict, match="a host that is reachable is not gone"):
            await weaver.node_gone("b", "ann")
        with pytest.raises(NotFound):
            await weaver.node_gone("c", "ann")

        on.gate.shut(silently)
        await until(lambda: on.node() is NodeState.UNREACHABLE, "b is found to be silent")
        incident = weaver.fleet.incidents["j.1"]
        assert (incident.kind, incident.node, incident.open) == ("node-lost", "b", True)
        await until(lambda: (weaver.node_seen("b") or 0) > 6, "a while passes")
        assert on.job.state is JobState.RUNNING and on.job.generation == 1 and not on.job.restarts
        assert all(is_alive(*one) for one in old), "nothing healthy was touched"

        on.gate.open()
        await until(lambda: on.node() is NodeState.READY and not incident.open, "b is reachable again")
        assert on.processes() == old and all(is_alive(*one) for one in old) and on.job.generation == 1

        on.gate.shut(silently)
        await until(lambda: on.node() is NodeState.UNREACHABLE, "b is found to be silent again")
        await weaver.node_gone("b", "ann")
        await on.running(2)
        assert {worker.node for worker in on.job.workers} == {"a"} and on.node() is NodeState.GONE
        assert all(is_alive(*one) for one in old), "the word was wrong: they live behind the cut"
        new = on.processes()

        on.gate.open()
        await until(lambda: not any(is_alive(*one) for one in old), "what counted as dead is ended")
        await until(lambda: on.node() is NodeState.READY and not weaver.fleet.outbox, "b is one of us again")
        assert on.job.state is JobState.RUNNING and on.job.generation == 2 and on.processes() == new
        assert all(is_alive(*one) for one in new)
        assert not broken(weaver.fleet) and len(on.job.incidents) == 1


def test_an_injected_partition_cuts_the_agent_off_for_its_time_and_restarts_nothing(
    nats_port: int, tmp_path: Path
) -> None:
    asyncio.run(_inject(nats_port, tmp_path))


async def _inject(nats_port: int, tmp_path: Path) -> None:
    async with fleet(nats_port, tmp_path) as on:
        await start(on, tmp_path)
        weaver, old = on.weaver, on.processes()
        with pytest.raises(UsageError, match="needs an end"):
            await weaver.inject("j", (0,), Fault(kind="partition"), "ann")
        while on.node() is not NodeState.UNREACHABLE:  # again, if this machine slept through it
            _, ranks = await weaver.inject("j", (0,), Fault(kind="partition", duration_s=9.0), "ann")
            assert ranks == (0,)
            await until(
                lambda: on.node() is NodeState.UNREACHABLE or not weaver.fleet.outbox,
                "b is found to be silent, or heard again",
            )
        incident = weaver.fleet.incidents["j.1"]
        assert (incident.kind, incident.node, on.node("a")) == ("node-lost", "b", NodeState.READY)
        await until(lambda: on.node() is NodeState.READY and not incident.open, "b is reachable again")
        await until(lambda: not weaver.fleet.outbox, "the injection is told to be done")
        assert on.processes() == old and all(is_alive(*one) for one in old), "nothing healthy was touched"
        assert on.job.state is JobState.RUNNING and on.job.generation == 1 and not on.job.restarts


def test_a_spare_place_is_warm_is_used_and_is_made_anew_where_the_lost_one_was(
    nats_port: int, tmp_path: Path
) -> None:
    asyncio.run(_promote(nats_port, tmp_path))


async def _promote(nats_port: int, tmp_path: Path) -> None:
    async with fleet(nats_port, tmp_path) as on:
        await start(on, tmp_path, spawn="warm", standby=1)
        assert on.job.spares == ["a"] and on.weaver.fleet.nodes["a"].spare == {"j": 2}
        sockets = on.homes["a"].sockets
        await until(lambda: not on.weaver.fleet.outbox and list(sockets.glob("*.sock")), "a is warm")
        on.gate.shut(silently=False)
        await until(lambda: on.node() is NodeState.UNREACHABLE, "b is found to be silent")
        await on.weaver.node_gone("b", "ann")
        await on.running(2)
        assert {worker.node for worker in on.job.workers} == {"a"} and not on.job.spares
        assert len(list(sockets.glob("*.sock"))) == 1, "the very spawner that was made ready"
        on.gate.open()
        await until(lambda: on.job.spares == ["b"], "the node that returned is the spare now")


def test_a_host_that_is_heard_again_before_its_deadline_ends_nobody(nats_port: int, tmp_path: Path) -> None:
    asyncio.run(_hear_in_time(nats_port, tmp_path))


async def _hear_in_time(nats_port: int, tmp_path: Path) -> None:
    async with fleet(nats_port, tmp_path) as on:
        await start(on, tmp_path, policy=Policy(self_fence_s=WITHIN_S))
        old = on.processes()
        on.gate.shut(silently=True)
        await until(lambda: on.node() is NodeState.UNREACHABLE, "b is found to be silent")
        on.gate.open()
        await until(lambda: on.node() is NodeState.READY, "b is heard in time")
        assert on.processes() == old and all(is_alive(*one) for one in old), "a short cut ends nobody"


def test_a_job_that_allows_it_is_ended_by_its_cut_off_host_and_only_then_replaced(
    nats_port: int, tmp_path: Path
) -> None:
    asyncio.run(_fence(nats_port, tmp_path))


async def _fence(nats_port: int, tmp_path: Path) -> None:
    async with fleet(nats_port, tmp_path) as on:
        await start(on, tmp_path, policy=Policy(self_fence_s=5.0))
        old = on.processes()
        on.gate.shut(silently=True)
        started = on.job.generation
        while on.job.generation == started:
            assert on.job.state is JobState.RUNNING or not any(is_alive(*one) for one in old), "too early"
            await asyncio.sleep(0.02)
        assert not any(is_alive(*one) for one in old), "never two live incarnations of a rank"
        await on.running(2)
        assert {worker.node for worker in on.job.workers} == {"a"} and on.node() is NodeState.UNREACHABLE
        incident = on.weaver.fleet.incidents["j.1"]
        assert incident.kind == "node-lost" and "self_fence_s" in incident.verdict
        new = on.processes()

        on.gate.open()
        await until(lambda: on.node() is NodeState.READY and not on.weaver.fleet.outbox, "b is one of us")
        assert on.job.generation == 2 and all(is_alive(*one) for one in new) and on.processes() == new
        assert not broken(on.weaver.fleet)
