"""An agent with a real spawner over the memory bus, and the weaver's side of it for tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from torchloom.agent.main import serve
from torchloom.agent.observe import boxes
from torchloom.agent.processes import spawners
from torchloom.bus.memory import LeaseEntry, MemoryBus, MemoryHub
from torchloom.bus.protocol import LEADER
from torchloom.home import Home
from torchloom.model.effects import Effect, Launch, StartWorkers, StopWorkers
from torchloom.model.events import (
    EffectDone,
    EffectFailed,
    Event,
    WorkerExited,
    WorkersStarted,
)
from torchloom.model.job import Program
from torchloom.model.messages import BoxReading, Command, LogPiece, ReadBox, ReadLog, Receipt, Telemetry
from torchloom.model.node import RendezvousAddress
from torchloom.model.worker import WorkerRef
from torchloom.wire import codec, subjects

NODE = "here"


E = TypeVar("E", bound=Event)


SOURCES = str(Path(__file__).parents[2] / "src")


class Stage:
    """One home, one bus, and the agents that serve it one after the other."""

    def __init__(self, home: Home, work: Path) -> None:
        self.home = home
        self.work = work
        self.hub = MemoryHub()
        self.weaver = self.hub.bus()
        self.agent_bus: MemoryBus = self.hub.bus()
        self.stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.numbers = iter(range(1, 1000))

    # -- the agent ------------------------------------------------------------------------------
    async def start_agent(self, prewarm: bool = False, **options: Any) -> None:
        self.stop = asyncio.Event()
        ready = asyncio.Event()
        self.agent_bus = self.hub.bus()
        self.task = asyncio.create_task(
            serve(self.home, NODE, self.agent_bus, stop=self.stop, ready=ready, prewarm=prewarm, **options)
        )
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([self.task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self.task.done():
            self.task.result()

    async def stop_agent(self) -> None:
        assert self.task is not None
        self.stop.set()
        await self.task
        await self.agent_bus.close()

    async def crash_agent(self) -> None:
        assert self.task is not None
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        await self.agent_bus.close()

    # -- the weaver's side ----------------------------------------------------------------------
    async def send(self, effect: Effect, epoch: int = 1, env: dict[str, str] | None = None) -> Receipt:
        self.lead(epoch)
        command = Command(epoch, effect, environment() if env is None else env)
        answer = await self.weaver.request(subjects.command(NODE), codec.encode(command))
        return codec.decode_receipt(answer)

    def lead(self, epoch: int) -> None:
        """A weaver takes the lease with this epoch, unless a newer one has it."""
        held = self.hub.leases.get(LEADER)
        if held is None or held.epoch < epoch:
            self.hub.leases[LEADER] = LeaseEntry(epoch, "weaver", float("inf"), epoch)

    def events(self, kind: type[E]) -> list[E]:
        found = [codec.decode_envelope(record.data).body for record in self.hub.records]
        return [event for event in found if isinstance(event, kind)]

    async def event(self, kind: type[E], accept: Callable[[E], bool] = lambda _: True) -> E:
        try:
            return await until(lambda: next(filter(accept, self.events(kind)), None))
        except TimeoutError as error:
            raise AssertionError(f"no {kind.__name__}; failed: {self.events(EffectFailed)}") from error

    async def exit_of(self, rank: int, generation: int = 1) -> WorkerExited:
        return await self.event(WorkerExited, lambda e: e.ref.rank == rank and e.ref.generation == generation)

    def effect_id(self) -> str:
        return f"e{next(self.numbers)}-0"

    def order(
        self,
        program: Program,
        *,
        world: int = 1,
        generation: int = 1,
        job: str = "tiny",
        port: int = 1,
        **changes: Any,
    ) -> StartWorkers:
        fields: dict[str, Any] = {
            "id": self.effect_id(),
            "cause": 1,
            "reason": "a test wants it",
            "node": NODE,
            "job": job,
            "generation": generation,
            "program": program,
            "cwd": str(self.work),
            "interpreter": sys.executable,
            "spawn": "cold",
            "preload": (),
            "launches": tuple(
                Launch(WorkerRef(job, rank, generation, (generation - 1) * world + rank + 1), rank)
                for rank in range(world)
            ),
            "world_size": world,
            "local_world_size": world,
            "group_rank": 0,
            "group_world_size": 1,
            "replicas": 1,
            "restart_count": 0,
            "max_restarts": 3,
            "store": RendezvousAddress("127.0.0.1", port),
        }
        return StartWorkers(**{**fields, **changes})

    async def start(self, program: Program, **changes: Any) -> WorkersStarted:
        order = self.order(program, **changes)
        assert (await self.send(order)).accepted
        started = await self.event(WorkersStarted, lambda e: e.effect == order.id)
        return started

    async def end(self, *refs: WorkerRef, **how: Any) -> EffectDone:
        effect = StopWorkers(
            id=self.effect_id(), cause=1, reason="a test is over", node=NODE, workers=refs, **how
        )
        assert (await self.send(effect)).accepted
        return await self.event(EffectDone, lambda e: e.effect == effect.id)

    def boxes(self) -> list[Path]:
        return list(boxes.found_in(self.home))


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": SOURCES}


def steps(step_s: float, *words: str) -> Program:
    """A worker that steps, without torch."""
    script = str(Path(__file__).with_name("agent_worker.py"))
    return Program("command", sys.executable, (script, str(step_s), *words))


def sh(text: str, *words: str) -> Program:
    """A shell script; the words are its $0, $1 and so on."""
    return Program("command", "sh", ("-c", text, *words))


async def until(check: Callable[[], Any], timeout_s: float = 120.0) -> Any:
    """Wait for a condition."""
    give_up = time.monotonic() + timeout_s
    while not (found := check()):
        if time.monotonic() > give_up:
            raise TimeoutError("waited too long")
        await asyncio.sleep(0.005)
    return found


@contextlib.asynccontextmanager
async def staged(tmp_path: Path) -> AsyncIterator[Stage]:
    # An agent does not wait for ever for a spawner that should leave; here nothing may be left of one.
    with mock.patch.object(spawners, "_LEAVE_WITHIN_S", 120.0):
        async with _staged(tmp_path) as stage:
            yield stage


@contextlib.asynccontextmanager
async def _staged(tmp_path: Path) -> AsyncIterator[Stage]:
    home = Home(tmp_path / uuid.uuid4().hex[:8])
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    stage = Stage(home, work)
    try:
        yield stage
    finally:
        if stage.task is None or stage.task.done():
            await stage.start_agent()
        refs = [ref for joined in stage.events(WorkersStarted) for ref in (w.ref for w in joined.workers)]
        gone = {event.ref for event in stage.events(WorkerExited)}
        await stage.end(*{ref for ref in refs if ref not in gone})
        await stage.stop_agent()
        assert not processes_naming(home.sockets)
        left = [path for path in (home.boxes, home.boxes_fallback, home.sockets) if path.exists()]
        assert not left, f"left behind: {left} {[list(path.iterdir()) for path in left]}"


def processes_naming(path: Path) -> list[int]:
    """Processes, e.g. spawners, whose command line speaks of this path."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and os.fsencode(path) in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def run(tmp_path: Path, scene: Callable[[Stage], Any]) -> None:
    async def play() -> None:
        async with staged(tmp_path) as stage:
            await scene(stage)

    asyncio.run(play())


async def read_log(stage: Stage, query: ReadLog) -> LogPiece:
    return codec.decode_log_piece(await stage.weaver.request(subjects.query(NODE), codec.encode(query)))


async def read_box(stage: Stage, ref: WorkerRef) -> BoxReading:
    answer = await stage.weaver.request(subjects.query(NODE), codec.encode(ReadBox(ref)))
    return codec.decode_box_reading(answer)


async def telemetry(stage: Stage, accept: Callable[[Telemetry], bool]) -> Telemetry:
    heard: list[Telemetry] = []

    async def hear(message: Any) -> None:
        heard.append(codec.decode_telemetry(message.data))

    subscription = await stage.weaver.subscribe(subjects.telemetry(NODE), hear)
    try:
        found: Telemetry = await until(lambda: next(filter(accept, heard), None))
        return found
    finally:
        await subscription.unsubscribe()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
