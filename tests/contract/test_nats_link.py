"""How the connection to a real server mends itself, in ways the memory bus has no words for."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import aclosing
from typing import Any

import pytest

from torchloom.bus import nats_client
from torchloom.bus.address import BusAddress
from torchloom.bus.nats_link import Link
from torchloom.bus.protocol import Message
from torchloom.errors import BusUnavailable

SUBJECT = "loom.v1.event.weaver"


async def test_a_client_that_the_server_threw_out_comes_back_with_its_subscriptions(nats_stage: Any) -> None:
    """nats-py closes for good on a protocol error it does not know; the link replaces the client."""
    bus, other = await nats_stage.open(), await nats_stage.open()
    back, got = asyncio.Event(), asyncio.Event()

    async def on_back() -> None:
        back.set()

    async def on_message(message: Message) -> None:
        got.set()

    bus.on_reconnect.append(on_back)
    await bus.subscribe("loom.v1.telemetry.n1", on_message)
    client = bus._link.client
    await client._process_err("'maximum connections exceeded'")
    await back.wait()
    assert bus._link.client is not client
    await other.publish("loom.v1.telemetry.n1", b"")
    await got.wait()
    assert await bus.append("loom.v1.event.weaver", b"", id="1") == 1


async def test_a_server_that_ends_in_good_order_and_comes_back(nats_stage: Any) -> None:
    bus = await nats_stage.open()
    async with aclosing(bus.read(0)) as records:
        for number in (1, 2, 3):
            assert await bus.append(SUBJECT, b"", id=f"{number}", timeout_s=120) == number
            assert (await anext(records)).seq == number
            await asyncio.to_thread(nats_stage.stop)
            await asyncio.to_thread(nats_stage.start)


async def test_a_frozen_server_costs_a_timeout_and_nothing_else(nats_stage: Any) -> None:
    bus = await nats_stage.open()
    pid = nats_stage.server.pid()
    async with aclosing(bus.read(0)) as records:
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(BusUnavailable):
                await bus.append(SUBJECT, b"", id="1", expect_last=0, timeout_s=0.3)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert await bus.append(SUBJECT, b"", id="1", expect_last=0, timeout_s=120) == 1
        assert await bus.append(SUBJECT, b"", id="2", expect_last=1, timeout_s=120) == 2
        assert [(await anext(records)).seq, (await anext(records)).seq] == [1, 2]


async def test_an_agent_waits_for_a_stream_that_no_weaver_has_made_yet(nats_stage: Any) -> None:
    agent = await nats_stage.open_agent()
    said = ""
    while "start a weaver" not in said:  # in so short a time a busy server may not have said anything
        with pytest.raises(BusUnavailable) as caught:
            await agent.append("loom.v1.event.node.n1.report", b"", id="1", timeout_s=0.2)
        said = str(caught.value)
    waiting = asyncio.ensure_future(agent.append("loom.v1.event.node.n1.report", b"", id="1", timeout_s=120))
    await nats_stage.open()
    assert await waiting == 1


async def test_a_frozen_server_does_not_hold_up_telemetry(nats_stage: Any) -> None:
    bus, other = await nats_stage.open(), await nats_stage.open()
    got: asyncio.Queue[Message] = asyncio.Queue()
    await other.subscribe("loom.v1.telemetry.n2", got.put)
    pid = nats_stage.server.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(2000):
            await bus.publish("loom.v1.telemetry.n1", bytes(40_000))
        assert bus._link.client.pending_data_size < 8 * 1024 * 1024
    finally:
        os.kill(pid, signal.SIGCONT)
    while got.empty():
        await bus.publish("loom.v1.telemetry.n2", b"well again")
        await asyncio.sleep(0.01)


async def test_a_burst_that_a_healthy_server_takes_is_not_dropped(nats_stage: Any) -> None:
    bus, other = await nats_stage.open(), await nats_stage.open()
    got: asyncio.Queue[Message] = asyncio.Queue()
    await other.subscribe("loom.v1.telemetry.n1", got.put)
    for _ in range(500):
        await bus.publish("loom.v1.telemetry.n1", bytes(40_000))
    for _ in range(500):
        await got.get()


async def test_servers_that_let_nobody_in_are_asked_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a revocation: the server takes the connection and closes it. Only lower bounds are compared:
    a slow machine changes nothing."""
    monkeypatch.setattr(nats_client, "REFUSED_FIRST_S", 0.02)
    tries: list[float] = []
    enough = asyncio.Event()

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tries.append(time.monotonic())
        writer.close()
        if len(tries) >= 8:
            enough.set()

    door = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = door.sockets[0].getsockname()[1]
    link = Link(BusAddress.from_url(f"nats://127.0.0.1:{port}"), "refused")
    opening = asyncio.create_task(link.open(3600.0))
    await enough.wait()
    opening.cancel()
    await asyncio.wait([opening])
    for at in range(2, 8):
        assert tries[at] - tries[at - 1] >= 0.02 * 2 ** (at - 1), f"try {at}"
    door.close()
