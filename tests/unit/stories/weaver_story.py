"""A weaver on the memory bus, and a small agent that obeys."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator

from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.bus.protocol import Bus, Message
from torchloom.core.history.trimming import KEEP_HISTORY
from torchloom.model.effects import (
    Effect,
    ReleaseMemory,
    RemoveJobFiles,
    StartRendezvous,
    StartWorkers,
    StopRendezvous,
    StopWorkers,
)
from torchloom.model.events import (
    EffectDone,
    Envelope,
    Event,
    NodeJoined,
    RendezvousStarted,
    StartedWorker,
    WorkerExited,
    WorkersStarted,
)
from torchloom.model.job import JobSpec, Program
from torchloom.model.messages import Receipt
from torchloom.model.node import Inventory, RendezvousAddress
from torchloom.model.worker import Exit, WorkerRef
from torchloom.weaver.service import Weaver
from torchloom.wire import codec, subjects

SPEC = JobSpec(program=Program("script", "train.py"), cwd="/", workers_per_node=2)


class ObedientAgent:
    """Does at once what it is told, once per effect, and reports it."""

    def __init__(self, bus: Bus, node: str = "n1") -> None:
        self.bus, self.node = bus, node
        self.done: list[Effect] = []
        self.received = 0
        self.live: dict[WorkerRef, int] = {}
        self.env: dict[str, str] = {}
        self.deaf = False

    async def join(self) -> None:
        await self.bus.subscribe(subjects.command(self.node), self._obey)
        inventory = Inventory(hostname="h", address="127.0.0.1", boot_id="b", max_workers=8)
        await self.say(NodeJoined(node=self.node, session="s", inventory=inventory))

    async def say(self, body: Event) -> None:
        envelope = Envelope(uuid.uuid4().hex, self.node, body)
        await self.bus.append(subjects.node_event(self.node), codec.encode(envelope), id=envelope.id)

    async def die(self, ref: WorkerRef, code: int | None, signal: int | None = None, steps: int = 50) -> None:
        if self.live.pop(ref, None) is not None:
            exit_ = Exit(code, signal, "spawner")
            await self.say(WorkerExited(node=self.node, ref=ref, exit=exit_, at_ns=1, steps=steps))

    async def _obey(self, message: Message) -> None:
        command = codec.decode_command(message.data)
        self.received += 1
        await self.bus.respond(message, codec.encode(Receipt(True, command.epoch)))
        if self.deaf or any(e.id == command.effect.id for e in self.done):
            return
        effect = command.effect
        self.done.append(effect)
        self.env = command.env or self.env
        match effect:
            case StartRendezvous():
                address = RendezvousAddress("127.0.0.1", 29500)
                await self.say(
                    RendezvousStarted(node=self.node, effect=effect.id, store=effect.store, address=address)
                )
            case StartWorkers():
                started = tuple(StartedWorker(start.ref, 100 + start.ref.rank) for start in effect.launches)
                self.live.update((s.ref, s.pid) for s in started)
                await self.say(WorkersStarted(node=self.node, effect=effect.id, workers=started))
            case StopWorkers():
                await self.say(EffectDone(node=self.node, effect=effect.id))
                for ref in effect.workers:
                    await self.die(ref, None, 9)
            case StopRendezvous() | RemoveJobFiles() | ReleaseMemory():
                await self.say(EffectDone(node=self.node, effect=effect.id))


@contextlib.asynccontextmanager
async def running(hub: MemoryHub, name: str, keep_history: int = KEEP_HISTORY) -> AsyncIterator[Weaver]:
    weaver, stop = Weaver(MemoryBus(hub), name, keep_history=keep_history), asyncio.Event()
    task = asyncio.create_task(weaver.run(stop))
    try:
        yield weaver
    finally:
        stop.set()
        await task


async def until(weaver: Weaver, condition: object, what: str) -> None:
    async with asyncio.timeout(120):
        while not condition():  # type: ignore[operator]
            await weaver.changed(weaver.fleet.seq, 0.05)
    assert condition(), what  # type: ignore[operator]


@contextlib.asynccontextmanager
async def obeyed(hub: MemoryHub) -> AsyncIterator[tuple[Weaver, ObedientAgent]]:
    """A weaver that leads, and an agent that it knows."""
    agent = ObedientAgent(MemoryBus(hub))
    async with running(hub, "w1") as weaver:
        await agent.join()
        await until(weaver, lambda: weaver.active and agent.node in weaver.fleet.nodes, "ready")
        yield weaver, agent
