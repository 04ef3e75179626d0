"""Flows that nothing else must wait behind, and handlers that are slower than their messages."""

from __future__ import annotations

import asyncio
from typing import Any

from torchloom.bus import pump
from torchloom.bus.protocol import Message


async def test_a_flow_of_its_own_delivers_like_any_other(stage: Any) -> None:
    bus, other = await stage.open(), await stage.open()
    heard: list[bytes] = []

    async def hear(message: Message) -> None:
        heard.append(message.data)

    flow = await bus.subscribe("loom.v1.telemetry.*", hear, lambda subject, size: size < 3, apart=True)
    for data in (b"1", b"long", b"2"):
        await other.publish("loom.v1.telemetry.n", data)
    while len(heard) < 2:
        await asyncio.sleep(0.01)
    assert heard == [b"1", b"2"] and flow.waiting == 0
    await flow.unsubscribe()
    await other.publish("loom.v1.telemetry.n", b"3")
    assert heard == [b"1", b"2"]


async def test_what_a_slow_handler_is_behind_with_is_dropped_from_the_oldest_on() -> None:
    heard: list[bytes] = []

    async def hear(message: Message) -> None:
        heard.append(message.data)

    made = pump.HandlerPump("x", hear)
    for number in range(pump.MAX_BACKLOG + 5):
        made.deliver(Message("x", str(number).encode(), ""))
    assert (made.waiting, made.dropped) == (pump.MAX_BACKLOG, 5)
    while made.waiting:
        await asyncio.sleep(0)
    assert heard[0] == b"5" and heard[-1] == str(pump.MAX_BACKLOG + 4).encode()
    made.cancel()


async def test_a_handler_that_fails_costs_one_message_and_others_get_their_turn() -> None:
    heard, turns = [], 0

    async def hear(message: Message) -> None:
        if message.data == b"bad":
            raise ValueError("bad")
        heard.append(message.data)

    made = pump.HandlerPump("x", hear)
    for data in (b"1", b"bad", *[b"2"] * 100):
        made.deliver(Message("x", data, ""))
    while made.waiting:
        turns += 1
        await asyncio.sleep(0)
    assert heard == [b"1", *[b"2"] * 100] and turns > 100 // pump.BREATHE_EVERY
    made.cancel()
