"""Two real agents under one name: one is obeyed, the other is told why not, and no worker notices."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agent_stage import SOURCES, environment, processes_naming, sh, until

from torchloom.agent import node_name
from torchloom.agent.main import serve
from torchloom.bus.memory import LeaseEntry, MemoryBus, MemoryHub
from torchloom.bus.protocol import LEADER
from torchloom.errors import Conflict, TimedOut
from torchloom.home import Home
from torchloom.model.effects import RemoveJobFiles
from torchloom.model.events import EffectDone, Envelope, NodeJoined
from torchloom.model.fleet import JobState, NodeState
from torchloom.model.job import JobSpec
from torchloom.model.messages import Command
from torchloom.weaver.service import Weaver
from torchloom.wire import codec, subjects

NODE = "here"


class Agent:
    """One agent on a home of its own; several lives of it may follow each other."""

    def __init__(self, hub: MemoryHub, home: Home) -> None:
        self.hub, self.home = hub, home
        self.bus: MemoryBus = hub.bus()
        self.stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        ready, self.stop, self.bus = asyncio.Event(), asyncio.Event(), self.hub.bus()
        self.task = asyncio.create_task(
            serve(self.home, NODE, self.bus, stop=self.stop, ready=ready, prewarm=False)
        )
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({self.task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self.task.done():
            self.task.result()

    async def crash(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait({self.task})
        await self.bus.close()

    async def end(self) -> None:
        if self.task is not None and not self.task.done():
            self.stop.set()
            await self.task
        await self.bus.close()
        assert not processes_naming(self.home.sockets)
        left = [
            path for path in (self.home.boxes, self.home.boxes_fallback, self.home.sockets) if path.exists()
        ]
        assert not left, f"left behind: {left}"


@contextlib.asynccontextmanager
async def two_agents(tmp_path: Path) -> AsyncIterator[tuple[Agent, Agent]]:
    hub = MemoryHub()
    first, second = (Agent(hub, Home(tmp_path / home)) for home in ("one", "two"))
    try:
        yield first, second
    finally:
        await second.end()
        await first.end()


@contextlib.asynccontextmanager
async def leading(hub: MemoryHub) -> AsyncIterator[Weaver]:
    weaver, stop = Weaver(hub.bus(), "w1"), asyncio.Event()
    task = asyncio.create_task(weaver.run(stop))
    try:
        await until(lambda: weaver.active and weaver.ready)
        yield weaver
    finally:
        stop.set()
        await task


def results(hub: MemoryHub) -> list[Envelope]:
    told = [codec.decode_envelope(record.data) for record in hub.records]
    return [envelope for envelope in told if isinstance(envelope.body, EffectDone)]


def test_the_second_host_is_refused_and_the_first_is_replaced_only_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_name, "PATIENCE_S", 0.5)
    spec = JobSpec(
        program=sh("exec sleep 600"), cwd=str(tmp_path), workers_per_node=1, interpreter=sys.executable,
        spawn="cold",
    )  # fmt: skip

    async def scene() -> None:
        async with two_agents(tmp_path) as (first, second), leading(first.hub) as weaver:
            await first.start()
            await until(lambda: NODE in weaver.fleet.nodes)
            session = weaver.fleet.nodes[NODE].session
            await weaver.submit("j", spec, {**environment(), "PYTHONPATH": SOURCES}, "me")
            await until(lambda: weaver.fleet.jobs["j"].state is JobState.RUNNING)
            job = weaver.fleet.jobs["j"]
            # The other words for it: on a busy machine the first may count as silent for a moment.
            taken = f"node name {NODE} (is already taken by|belongs to) host .* --node"
            with pytest.raises(Conflict, match=taken):
                await second.start()
            assert weaver.fleet.nodes[NODE].session == session
            await until(lambda: weaver.fleet.nodes[NODE].state is NodeState.READY)
            assert job.state is JobState.RUNNING and job.workers[0].alive and not job.restarts

            await first.crash()
            await first.start()  # the same host: it need not wait until its former self is silent
            assert weaver.fleet.nodes[NODE].session != session
            assert job.state is JobState.RUNNING and job.workers[0].alive and job.generation == 1
            await weaver.stop("j", "me", kill=True)
            await until(lambda: job.state is JobState.STOPPED)
            await until(lambda: not weaver.fleet.outbox)

    asyncio.run(scene())


def test_where_there_is_no_weaver_the_second_learns_it_later_and_obeys_nothing_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_name, "PATIENCE_S", 0.2)

    async def scene() -> None:
        async with two_agents(tmp_path) as (first, second):
            await first.start()
            await second.start()
            told = [codec.decode_envelope(record.data) for record in first.hub.records]
            sessions = [e.body.session for e in told if isinstance(e.body, NodeJoined)]
            assert len(sessions) == 2 and sessions[0] != sessions[1]
            effect = RemoveJobFiles(
                id="e1", cause=1, reason="a test wants it", node=NODE, job="none", generation=1
            )
            bus = first.hub.bus()
            first.hub.revision, first.hub.leases[LEADER] = 1, LeaseEntry(1, "gone", 0.0, 1)
            with pytest.raises(TimedOut):
                nobody = Command(1, effect, {}, "an agent of before")
                await bus.request(subjects.command(NODE), codec.encode(nobody), timeout_s=0.2)
            meant = codec.encode(Command(1, effect, {}, sessions[0]))
            assert codec.decode_receipt(await bus.request(subjects.command(NODE), meant, 60.0)).accepted
            done = await until(lambda: results(first.hub))
            assert [envelope.session for envelope in done] == sessions[:1]
            async with leading(first.hub) as weaver:
                assert second.task is not None and first.task is not None
                with pytest.raises(Conflict, match="already taken"):
                    await second.task
                assert weaver.fleet.nodes[NODE].session == sessions[0] and not first.task.done()

    asyncio.run(scene())
