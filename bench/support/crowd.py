"""Many agents without processes, in one process and over one connection: they send what real agents send.

Each node has eight ranks. It sends telemetry four times a second and windows twice a second, answers every
command at once, and reports each start, first step and exit as an event of its own. All ranks train in step,
with the same step time, so that there is nothing to report about them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from torchloom import boottime
from torchloom.bus.nats import NatsBus
from torchloom.bus.protocol import Message
from torchloom.core.detect.window_blocks import Packing
from torchloom.core.nodes.report_pace import pulse_every_s, window_every_s
from torchloom.errors import LoomError
from torchloom.model.effects import Effect, StartRendezvous, StartWorkers, StopWorkers
from torchloom.model.events import (
    EffectDone,
    Envelope,
    Event,
    FirstStep,
    NodeJoined,
    RendezvousStarted,
    StartedWorker,
    WorkerExited,
    WorkersStarted,
)
from torchloom.model.messages import Receipt, Telemetry, WorkerPulse
from torchloom.model.node import Inventory, RendezvousAddress
from torchloom.model.windows import GroupPosition, RankWindow, RefWindow, StepTimes, WindowBatch, WindowBlock
from torchloom.model.worker import DeviceUse, Exit, WorkerRef
from torchloom.wire import codec, subjects

SLOTS = 8
STEP_NS = 500_000_000
STEPS_SENT = 4
AT_ONCE = 64
"""Events that are on their way at the same time: real agents append side by side."""


NODES_AT_ONCE = 32
"""Whose messages are written to the socket together; commands come in between."""


class Flow:
    """Publishes and nothing else, on a connection of its own: real agents have one each, and sending many
    messages through nats-py would cost this process more than the weaver needs to receive them."""

    def __init__(self, url: str) -> None:
        self._address = url.removeprefix("nats://").split(":")
        self._writer: asyncio.StreamWriter | None = None
        self._answering: asyncio.Task[None] | None = None

    async def open(self) -> None:
        reader, self._writer = await asyncio.open_connection(self._address[0], int(self._address[1]))
        await reader.readline()
        self._writer.write(b'CONNECT {"verbose":false,"pedantic":false,"name":"crowd"}\r\n')
        self._answering = asyncio.create_task(self._answer(reader, self._writer))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")

    async def send(self, messages: list[tuple[str, bytes]]) -> None:
        assert self._writer is not None
        self._writer.writelines(
            b"PUB %s %d\r\n%s\r\n" % (subject.encode(), len(data), data) for subject, data in messages
        )
        await self._writer.drain()
        await asyncio.sleep(0)

    async def aclose(self) -> None:
        if self._answering is not None:
            self._answering.cancel()
        if self._writer is not None:
            self._writer.close()


class Crowd:
    """The agents of all nodes."""

    def __init__(self, bus: NatsBus, url: str, ranks: int) -> None:
        self.bus, self.url = bus, url
        self.nodes = [f"n{number:05}" for number in range(ranks // SLOTS)]
        self.live: dict[str, dict[WorkerRef, int]] = {node: {} for node in self.nodes}
        """The workers of each node, and when each began (monotonic)."""
        self._packing = Packing()
        self.commands: list[tuple[float, Effect]] = []
        """What came, and when."""
        self.late_s = 0.0
        """The longest that a round of telemetry or windows was behind: then this process is what bends."""
        self.sent = 0
        """Messages of telemetry and windows so far."""
        self._room = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._seen: set[str] = set()

    # -- events ---------------------------------------------------------------------------------------
    async def say(self, node: str, body: Event) -> None:
        envelope = Envelope(uuid.uuid4().hex, f"agent/{node}", body, time.time_ns(), "s")
        data = codec.encode_envelope(envelope)
        async with self._room:
            while True:
                try:
                    await self.bus.append(subjects.node_event(node), data, id=envelope.id)
                    return
                except LoomError:
                    await asyncio.sleep(0.2)  # as an agent does: again, under the same id

    async def join(self) -> None:
        await self.bus.subscribe(subjects.command("*"), self._obey)
        await asyncio.gather(*(self.say(node, self._joined(node)) for node in self.nodes))

    def _joined(self, node: str) -> NodeJoined:
        devices = tuple(DeviceUse(f"{node}-{n}", "gpu", "H100") for n in range(SLOTS))
        inventory = Inventory(
            hostname=node, address="10.0.0.1", boot_id=node, home=node, max_workers=SLOTS, devices=devices
        )
        return NodeJoined(node=node, session="s", inventory=inventory)

    async def die(self, node: str, ref: WorkerRef, signal: int = 9) -> None:
        if self.live[node].pop(ref, None) is not None:
            ended = Exit(None, signal, "spawner")
            await self.say(
                node,
                WorkerExited(node=node, ref=ref, exit=ended, at_ns=time.time_ns(), steps=900, ran_s=900.0),
            )

    # -- commands -------------------------------------------------------------------------------------
    async def _obey(self, message: Message) -> None:
        command = codec.decode_command(message.data)
        self.commands.append((time.monotonic(), command.effect))
        await self.bus.respond(message, codec.encode(Receipt(True, command.epoch)))
        if command.effect.id not in self._seen:
            self._seen.add(command.effect.id)
            task = asyncio.create_task(self._do(command.effect))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _do(self, effect: Effect) -> None:
        node = effect.node
        match effect:
            case StartRendezvous():
                address = RendezvousAddress("127.0.0.1", 29500)
                started = RendezvousStarted(
                    node=node, effect=effect.id, store=effect.store, address=address
                )  # fmt: skip
                await self.say(node, started)
            case StartWorkers():
                refs = [launch.ref for launch in effect.launches]
                self.live[node] |= dict.fromkeys(refs, time.monotonic_ns())
                workers = tuple(StartedWorker(ref, 1000 + ref.rank) for ref in refs)
                await self.say(node, WorkersStarted(node=node, effect=effect.id, workers=workers))
                now_ns = time.time_ns()
                await asyncio.gather(
                    *(self.say(node, FirstStep(node=node, ref=ref, at_ns=now_ns)) for ref in refs)
                )
            case StopWorkers():
                await self.say(node, EffectDone(node=node, effect=effect.id))
                await asyncio.gather(*(self.die(node, ref) for ref in effect.workers))
            case _:
                await self.say(node, EffectDone(node=node, effect=effect.id))

    # -- what is lossy --------------------------------------------------------------------------------
    async def beat(self) -> None:
        async with contextlib.aclosing(Flow(self.url)) as flow:
            await flow.open()
            size = len(self.nodes)
            await asyncio.gather(
                self._rounds(flow, pulse_every_s(size), self._telemetry, subjects.telemetry),
                self._rounds(flow, window_every_s(size), self._windows, subjects.windows),
            )

    async def _rounds(
        self, flow: Flow, every_s: float, make: Callable[[str], bytes], subject: Callable[[str], str]
    ) -> None:
        """All nodes in turn, spread over the period as those of real hosts are."""
        begun = time.monotonic()
        pieces = max(1, round(every_s / 0.05))
        size = -(-len(self.nodes) // pieces)
        number = 0
        while True:
            at = number % pieces * size
            for first in range(at, at + size, NODES_AT_ONCE):
                some = self.nodes[first : min(first + NODES_AT_ONCE, at + size)]
                await flow.send([(subject(node), make(node)) for node in some])
                self.sent += len(some)
            number += 1
            wait_s = begun + number * every_s / pieces - time.monotonic()
            if wait_s < -every_s:  # far behind: those rounds are lost
                self.late_s, begun = max(self.late_s, -wait_s), begun - wait_s
            await asyncio.sleep(max(0.0, wait_s))

    def _telemetry(self, node: str) -> bytes:
        now_ns = time.monotonic_ns()
        pulses = tuple(
            WorkerPulse(
                ref=ref,
                pid=1000 + ref.rank,
                steps=(now_ns - began_ns) // STEP_NS,
                step_s=STEP_NS / 1e9,
                idle_s=0.1,
                phase="training",
                phase_s=1.0,
                metrics={"loss": 1.0},
                recorder="native",
            )
            for ref, began_ns in self.live[node].items()
        )
        beat = Telemetry(node=node, session="s", at_ns=time.time_ns(), epoch=0, workers=pulses)
        return codec.encode(beat)

    def _windows(self, node: str) -> bytes:
        """As an agent packs them. All ranks that began together have the same numbers: one is packed."""
        now_ns = time.monotonic_ns()
        alike: dict[tuple[str, int, int], list[WorkerRef]] = {}
        for ref, began_ns in self.live[node].items():
            alike.setdefault((ref.job, ref.generation, began_ns), []).append(ref)
        blocks = [self._block(node, refs, began_ns, now_ns) for (_, _, began_ns), refs in alike.items()]
        return codec.encode(
            WindowBatch(node=node, session="s", sent_ns=boottime.now_ns(), blocks=tuple(blocks))
        )

    def _block(self, node: str, refs: list[WorkerRef], began_ns: int, now_ns: int) -> WindowBlock:
        _, (one,) = self._packing.pack([self._window(node, refs[0], began_ns, now_ns)])
        return replace(
            one,
            ranks=tuple(ref.rank for ref in refs),
            incarnations=tuple(ref.incarnation for ref in refs),
            skeletons=one.skeletons * len(refs),
            sent={at: _of_rank(one.sent[0], ref.rank) for at, ref in enumerate(refs)} if one.sent else {},
        )

    def _window(self, node: str, ref: WorkerRef, began_ns: int, now_ns: int) -> RefWindow:
        done = (now_ns - began_ns) // STEP_NS
        newest = range(max(1, done - STEPS_SENT + 1), done + 1)
        window = RankWindow(
            rank=ref.rank,
            node=node,
            device=f"{node}-{ref.rank % SLOTS}",
            taken_ns=now_ns,
            started_ns=began_ns,
            last_activity_ns=now_ns - now_ns % 50_000_000,
            steps_done=done,
            steps=tuple(StepTimes(step, STEP_NS, 0, STEP_NS // 10, ((0, step),)) for step in newest),
            groups=(GroupPosition("default_pg", 1 << 20, ref.rank, done, done, STEP_NS // 10),),
        )
        return RefWindow(ref, window)

    # -- looking --------------------------------------------------------------------------------------
    def since(self, at_s: float, kind: type, job: str) -> list[float]:
        """When commands of a kind for a job came after a moment, in seconds after it."""
        return [
            when - at_s
            for when, effect in self.commands
            if when >= at_s and isinstance(effect, kind) and job in _jobs(effect)
        ]

    @property
    def idle(self) -> bool:
        """Whether every command is carried out and all of it is reported."""
        return not self._tasks

    @property
    def ranks(self) -> int:
        return sum(map(len, self.live.values()))


def _jobs(effect: Effect) -> Iterable[str]:
    if isinstance(effect, StartWorkers):
        return (effect.job,)
    return {ref.job for ref in effect.workers} if isinstance(effect, StopWorkers) else ()


def _of_rank(skeleton: RankWindow, rank: int) -> RankWindow:
    groups = tuple(replace(group, rank=rank) for group in skeleton.groups)
    return replace(skeleton, rank=rank, device=f"{skeleton.node}-{rank % SLOTS}", groups=groups)
