"""What every bus promises about messages: order, wildcards, requests, and silence while disconnected."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from torchloom.bus.protocol import MAX_MESSAGE_BYTES, Message
from torchloom.errors import BusUnavailable, NoResponder, TimedOut, UsageError


class Collector:
    """Keeps what a handler was given and lets a test wait for so many."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self._event = asyncio.Event()

    async def __call__(self, message: Message) -> None:
        self.got.append(message)
        self._event.set()

    async def wait(self, count: int) -> list[bytes]:
        while len(self.got) < count:
            self._event.clear()
            await self._event.wait()
        return [message.data for message in self.got]


async def test_messages_arrive_in_order_and_by_wildcard(stage: Any) -> None:
    sender, receiver = await stage.open(), await stage.open()
    one_token, rest, exact = Collector(), Collector(), Collector()
    await receiver.subscribe("loom.v1.telemetry.*", one_token)
    await receiver.subscribe("loom.v1.>", rest)
    await receiver.subscribe("loom.v1.telemetry.n1", exact)
    for number in range(100):
        await sender.publish("loom.v1.telemetry.n1", b"%d" % number)
    await sender.publish("loom.v1.telemetry.n1.deep", b"deep")
    assert await rest.wait(101) == [b"%d" % number for number in range(100)] + [b"deep"]
    assert await exact.wait(100) == [b"%d" % number for number in range(100)]
    assert len(await one_token.wait(100)) == 100


async def test_a_failing_handler_gets_the_next_message(stage: Any) -> None:
    bus = await stage.open()
    seen = Collector()

    async def handler(message: Message) -> None:
        await seen(message)
        if message.data == b"bad":
            raise ValueError("a handler's own mistake")

    await bus.subscribe("loom.v1.command.n1", handler)
    await bus.publish("loom.v1.command.n1", b"bad")
    await bus.publish("loom.v1.command.n1", b"good")
    assert await seen.wait(2) == [b"bad", b"good"]


async def test_unsubscribe_ends_delivery_and_may_be_called_by_the_handler(stage: Any) -> None:
    bus = await stage.open()
    seen, after = Collector(), asyncio.Event()

    async def handler(message: Message) -> None:
        await seen(message)
        await subscription.unsubscribe()
        after.set()

    subscription = await bus.subscribe("loom.v1.command.n1", handler)
    witness = Collector()
    await bus.subscribe("loom.v1.command.n1", witness)
    await bus.publish("loom.v1.command.n1", b"1")
    await after.wait()
    await bus.publish("loom.v1.command.n1", b"2")
    await witness.wait(2)
    assert [message.data for message in seen.got] == [b"1"]


async def test_request_and_respond(stage: Any) -> None:
    asker, answerer = await stage.open(), await stage.open()

    async def handler(message: Message) -> None:
        await answerer.respond(message, b"re: " + message.data)

    await answerer.subscribe("loom.v1.query.n1", handler)
    assert await asker.request("loom.v1.query.n1", b"hello", timeout_s=60) == b"re: hello"
    answers = await asyncio.gather(
        *(asker.request("loom.v1.query.n1", b"%d" % number, timeout_s=60) for number in range(50))
    )
    assert answers == [b"re: %d" % number for number in range(50)]


async def test_respond_to_a_message_that_asks_nothing_is_nothing(stage: Any) -> None:
    bus = await stage.open()
    await bus.respond(Message("loom.v1.command.n1", b""), b"unasked")


async def test_request_without_an_answer_times_out(stage: Any) -> None:
    bus = await stage.open()
    silent = Collector()
    await bus.subscribe("loom.v1.query.n1", silent)
    with pytest.raises(TimedOut) as caught:
        await bus.request("loom.v1.query.n1", b"?", timeout_s=0.2)
    assert not isinstance(caught.value, NoResponder | BusUnavailable)
    assert await silent.wait(1) == [b"?"]


async def test_request_to_nobody_fails_without_waiting(stage: Any) -> None:
    bus = await stage.open()
    with pytest.raises(NoResponder):
        # Would outlast the test if it waited.
        await bus.request("loom.v1.query.nobody", b"?", timeout_s=3600)


async def test_disconnected_publish_is_silent_and_request_says_so(stage: Any) -> None:
    bus = await stage.open()
    back = asyncio.Event()

    async def on_back() -> None:
        back.set()

    bus.on_reconnect.append(on_back)
    seen = Collector()
    await bus.subscribe("loom.v1.telemetry.n1", seen)
    assert bus.connected
    await stage.cut()
    assert not bus.connected
    for _ in range(1000):
        await bus.publish("loom.v1.telemetry.n1", b"lost" * 10_000)
    with pytest.raises(BusUnavailable):
        await bus.request("loom.v1.query.n1", b"?", timeout_s=0.2)
    await stage.mend()
    await back.wait()
    assert bus.connected
    await bus.publish("loom.v1.telemetry.n1", b"after")
    assert await seen.wait(1) == [b"after"], "the subscription lasts, what was published meanwhile does not"


async def test_a_client_that_is_cut_off_on_purpose_comes_back_by_itself(stage: Any) -> None:
    bus, other = await stage.open(), await stage.open()
    back = asyncio.Event()

    async def on_back() -> None:
        back.set()

    bus.on_reconnect.append(on_back)
    seen = Collector()
    await bus.subscribe("loom.v1.telemetry.n1", seen)
    await bus.cut(0.5)
    assert not bus.connected and other.connected
    await other.publish("loom.v1.telemetry.n1", b"lost")
    await back.wait()
    assert bus.connected
    await other.publish("loom.v1.telemetry.n1", b"after")
    assert await seen.wait(1) == [b"after"]


async def test_a_request_in_flight_fails_when_the_connection_is_lost(stage: Any) -> None:
    bus = await stage.open()
    asked = Collector()
    await bus.subscribe("loom.v1.query.n1", asked)
    request = asyncio.ensure_future(bus.request("loom.v1.query.n1", b"?", timeout_s=3600))
    await asked.wait(1)
    await stage.cut()
    with pytest.raises(BusUnavailable):
        await request


async def test_too_large_a_message_is_refused_with_advice(stage: Any) -> None:
    bus = await stage.open()
    with pytest.raises(UsageError, match="put_object"):
        await bus.publish("loom.v1.telemetry.n1", bytes(MAX_MESSAGE_BYTES + 1))


async def test_close_is_idempotent_and_later_use_is_unavailable(stage: Any) -> None:
    bus = await stage.open()
    await bus.close()
    await bus.close()
    assert not bus.connected
    await bus.publish("loom.v1.telemetry.n1", b"")
    with pytest.raises(BusUnavailable):
        await bus.append("loom.v1.event.weaver", b"", id="1", timeout_s=0.1)
    with pytest.raises(BusUnavailable):
        await bus.subscribe("loom.v1.telemetry.n1", Collector())
