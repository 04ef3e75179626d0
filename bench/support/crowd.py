"""Many agents without processes, in one process and over one connection: they send what real agents send.

Each node has eight ranks. It sends telemetry four times a second and windows twice a second, answers every
command at once, and reports each start, first step and exit as an event of its own. All ranks train in step,
with the same step time, so that there is nothing to report about them.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable

from torchloom import boottime
from torchloom.bus.nats import NatsBus
from torchloom.bus.protocol import Message
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
from torchloom.model.windows import GroupPosition, RankWindow, RefWindow, StepTimes, WindowBatch
from torchloom.model.worker import DeviceUse, Exit, WorkerRef
from torchloom.wire import codec, subjects

SLOTS = 8
STEP_NS = 500_000_000
STEPS_SENT = 4
TELEMETRY_EVERY_S, WINDOWS_EVERY_S = 0.25, 0.5
AT_ONCE = 64
"""Events that are on their way at the same time: real agents append side by side."""


class Crowd:
    """The agents of all nodes."""

    def __init__(self, bus: NatsBus, ranks: int) -> None:
        self.bus = bus
        self.nodes = [f"n{number:05}" for number in range(ranks // SLOTS)]
        self.live: dict[str, dict[WorkerRef, int]] = {node: {} for node in self.nodes}
        """The workers of each node, and when each began (monotonic)."""
        self.commands: list[tuple[float, Effect]] = []
        """What came, and when."""
        self.late_s = 0.0
        """The longest that a round of telemetry or windows was behind: then this process is what bends."""
        self.sent_bytes = 0
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
            await self.say(node, WorkerExited(node=node, ref=ref, exit=ended, at_ns=time.time_ns(), steps=9))

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
        await asyncio.gather(
            self._rounds(TELEMETRY_EVERY_S, self._telemetry, subjects.telemetry),
            self._rounds(WINDOWS_EVERY_S, self._windows, subjects.windows),
        )

    async def _rounds(self, every_s: float, make: object, subject: object) -> None:
        """All nodes in turn, spread over the period as those of real hosts are."""
        begun = time.monotonic()
        pieces = max(1, round(every_s / 0.05))
        size = -(-len(self.nodes) // pieces)
        number = 0
        while True:
            at = number % pieces * size
            for node in self.nodes[at : at + size]:
                data = make(node)  # type: ignore[operator]
                self.sent_bytes += len(data)
                await self.bus.publish(subject(node), data)  # type: ignore[operator]
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
        now_ns = time.monotonic_ns()
        made = tuple(self._window(node, ref, began_ns, now_ns) for ref, began_ns in self.live[node].items())
        batch = WindowBatch(node=node, session="s", sent_ns=boottime.now_ns(), windows=made)
        return codec.encode(batch)

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
    def ranks(self) -> int:
        return sum(map(len, self.live.values()))


def _jobs(effect: Effect) -> Iterable[str]:
    if isinstance(effect, StartWorkers):
        return (effect.job,)
    return {ref.job for ref in effect.workers} if isinstance(effect, StopWorkers) else ()
