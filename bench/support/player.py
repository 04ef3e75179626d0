"""An agent without processes: answers the weaver at once, and sends telemetry of all its workers."""

from __future__ import annotations

import asyncio
import time
import uuid

from torchloom.bus.nats import NatsBus
from torchloom.bus.protocol import Message
from torchloom.model.effects import StartRendezvous, StartWorkers, StopWorkers
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
from torchloom.model.messages import Receipt, Telemetry, WorkerPulse
from torchloom.model.node import Inventory, RendezvousAddress
from torchloom.model.worker import Exit, WorkerRef
from torchloom.wire import codec, subjects

NODE = "bench"


class Player:
    """An agent without processes."""

    def __init__(self, bus: NatsBus) -> None:
        self.bus = bus
        self.live: list[WorkerRef] = []

    async def join(self) -> None:
        await self.bus.subscribe(subjects.command(NODE), self._obey)
        inventory = Inventory(hostname=NODE, address="127.0.0.1", boot_id="b", max_workers=4000)
        await self.say(NodeJoined(node=NODE, session="s", inventory=inventory))

    async def say(self, body: Event) -> None:
        envelope = Envelope(uuid.uuid4().hex, NODE, body)
        await self.bus.append(subjects.node_event(NODE), codec.encode(envelope), id=envelope.id)

    async def beat(self) -> None:
        """Telemetry of all workers, as a real agent sends it."""
        while True:
            pulses = tuple(
                WorkerPulse(
                    ref=ref,
                    pid=1,
                    steps=10,
                    step_s=0.1,
                    idle_s=0.0,
                    phase="t",
                    phase_s=1.0,
                    metrics={"loss": 1.0},
                )
                for ref in self.live
            )
            beat = Telemetry(node=NODE, session="s", at_ns=time.time_ns(), epoch=0, workers=pulses)
            await self.bus.publish(subjects.telemetry(NODE), codec.encode(beat))
            await asyncio.sleep(1.0)

    async def _obey(self, message: Message) -> None:
        command = codec.decode_command(message.data)
        effect = command.effect
        await self.bus.respond(message, codec.encode(Receipt(True, command.epoch)))
        match effect:
            case StartRendezvous():
                address = RendezvousAddress("127.0.0.1", 29500)
                await self.say(
                    RendezvousStarted(node=NODE, effect=effect.id, store=effect.store, address=address)
                )
            case StartWorkers():
                started = tuple(StartedWorker(x.ref, 1) for x in effect.launches)
                self.live += [s.ref for s in started]
                await self.say(WorkersStarted(node=NODE, effect=effect.id, workers=started))
            case _:
                await self.say(EffectDone(node=NODE, effect=effect.id))
                for ref in effect.workers if isinstance(effect, StopWorkers) else ():
                    gone = Exit(None, 9, "spawner")
                    await self.say(WorkerExited(node=NODE, ref=ref, exit=gone, at_ns=time.time_ns()))
