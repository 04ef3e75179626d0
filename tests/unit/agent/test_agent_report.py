"""Events reach the stream in order, exactly once, however the bus behaves."""

from __future__ import annotations

import asyncio

from torchloom.agent.reporting import Reporter
from torchloom.bus.memory import MemoryHub
from torchloom.model.events import EffectDone, WorkerExited
from torchloom.model.worker import Exit, WorkerRef
from torchloom.wire import codec, subjects


def done(number: int) -> EffectDone:
    return EffectDone(node="n1", effect=f"e{number}")


def test_order_survives_an_absent_bus_and_lost_acknowledgements() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        bus = hub.bus()
        reporter = Reporter(bus, "n1")
        task = asyncio.create_task(reporter.run())
        bus.partition()
        stored = [reporter.say(done(n), f"id-{n}") for n in range(5)]
        assert not await reporter.drain(0.05)
        bus.heal()
        bus.lose_next_ack()
        assert all(await asyncio.gather(*stored))
        bodies = [codec.decode_envelope(r.data).body for r in hub.records]
        assert bodies == [done(n) for n in range(5)]
        assert {r.subject for r in hub.records} == {subjects.node_event("n1")}
        task.cancel()

    asyncio.run(scene())


def test_an_event_that_no_bus_takes_does_not_block_the_others() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        reporter = Reporter(hub.bus(), "n1")
        task = asyncio.create_task(reporter.run())
        too_long = WorkerExited(
            node="n1", ref=WorkerRef("j", 0, 1, 1), exit=Exit(1, None, "spawner"), at_ns=1,
            log_tail=("x" * (2 << 20),),
        )  # fmt: skip
        refused, fine = reporter.say(too_long, "long"), reporter.say(done(1), "short")
        assert (await refused, await fine) == (False, True)
        assert len(hub.records) == 1
        task.cancel()

    asyncio.run(scene())
