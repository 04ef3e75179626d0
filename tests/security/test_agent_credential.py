"""Whoever has one agent's credential tries to stop the control plane, or to speak for another node."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats.aio.client
import pytest

from torchloom.bus.embedded import EmbeddedNats
from torchloom.bus.nats import NatsBus
from torchloom.bus.nats_lease import parse_entry
from torchloom.bus.protocol import LEADER, Message

LEASE = "$KV.LOOM_LEASE.leader"


@asynccontextmanager
async def stolen_credential(tmp_path: Path) -> AsyncIterator[tuple[NatsBus, Any, EmbeddedNats]]:
    """The weaver's connection, and an attacker's client with the key of the agent on n1."""
    server = EmbeddedNats(tmp_path / "nats", "n1")
    server.start()
    try:
        server.wait_ready(120)
        weaver = await NatsBus.connect(server.address("weaver"), name="weaver", wait_s=120)
        await weaver.provision()
        attacker = nats.aio.client.Client()
        errors: list[Exception] = []

        async def note(error: Exception) -> None:
            errors.append(error)

        await attacker.connect(
            server.url,
            nkeys_seed_str=server.address("agent").seed,
            inbox_prefix="_INBOX_n1",
            error_cb=note,
        )
        try:
            yield weaver, attacker, server
        finally:
            await attacker.close()
            await weaver.close()
    finally:
        server.stop()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "reply",
    [
        LEASE,
        "loom.v1.event.weaver.decision",
        "loom.v1.event.node.n2.report",
        "loom.v1.command.n1",
        "$O.LOOM_OBJECTS.M.c25hcHNob3Q",
    ],
)
def test_an_acknowledgement_cannot_be_sent_to_somebody_else(tmp_path: Path, reply: str) -> None:
    """JetStream writes its acknowledgement to whatever reply subject it was given, with rights of its own."""

    async def scene() -> None:
        async with stolen_credential(tmp_path) as (weaver, attacker, _):
            lease = weaver.lease(LEADER, "w", 60.0)
            epoch = await lease.acquire()
            got: list[Message] = []

            async def note(message: Message) -> None:
                got.append(message)

            if not reply.startswith("loom.v1.event"):
                await weaver.subscribe("loom.v1.command.>", note)
            await attacker.publish("loom.v1.event.node.n1.report", b"", reply=reply)
            query = json.dumps({"last_by_subj": LEASE}).encode()
            await attacker.publish("loom.v1.leader", query, reply=reply)
            await attacker.publish("loom.v1.telemetry.n1", b"", reply=reply)
            await attacker.flush()

            async def stored() -> bool:
                return await weaver.last_seq("loom.v1.event.node.n1.report") > 0

            await until(stored)
            assert await weaver.last_seq("loom.v1.event.weaver.decision") == 0
            assert await weaver.last_seq("loom.v1.event.node.n2.report") == 0
            assert await lease.renew() and lease.epoch == epoch, "the lease is untouched"
            assert await weaver.held_epoch(LEADER) == epoch
            assert not got, "no command was forged"

    asyncio.run(scene())


def test_an_agent_reads_who_leads_and_nothing_else_of_jetstream(tmp_path: Path) -> None:
    async def scene() -> None:
        async with stolen_credential(tmp_path) as (weaver, _, server):
            agent = await NatsBus.connect(server.address("agent"), name="agent", wait_s=60)
            try:
                assert await agent.held_epoch(LEADER) == 0
                lease = weaver.lease(LEADER, "w", 60.0)
                epoch = await lease.acquire()
                assert epoch and await agent.held_epoch(LEADER) == epoch
                assert await lease.renew() and await lease.renew()
                assert await agent.held_epoch(LEADER) == epoch, "renewals do not change it"
                await lease.release()
                assert await agent.held_epoch(LEADER) == 0
            finally:
                await agent.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"null",
        b"[]",
        b'{"token": 1, "ttl_s": 2, "epoch": 3}',
        b'{"token": "x", "ttl_s": 1e308, "epoch": 1}',
        b'{"token": "x", "ttl_s": NaN, "epoch": 1}',
        b'{"token": "x", "ttl_s": 2, "epoch": 9223372036854775807}',
        b'{"stream":"LOOM_EVENTS","seq":7}',
        b"\xff\xfe",
    ],
)
def test_a_lease_that_cannot_be_read_is_free_and_epochs_still_grow(garbage: bytes) -> None:
    data = base64.b64encode(garbage).decode()
    entry = parse_entry({"seq": 41, "time": "2026-01-01T00:00:00Z", "data": data})
    assert (entry.revision, entry.token, entry.epoch) == (41, "", 0)


def test_a_weaver_takes_a_spoiled_lease_again(tmp_path: Path) -> None:
    async def scene() -> None:
        async with stolen_credential(tmp_path) as (weaver, _, _server):
            first, second = (weaver.lease(LEADER, name, 60.0) for name in ("a", "b"))
            epoch = await first.acquire()
            assert epoch is not None
            await weaver._link.publish(LEASE, b"[[[[")  # with the weaver's own rights: the worst case
            assert not await first.renew()
            later = await second.acquire()
            assert later is not None and later > epoch

    asyncio.run(scene())
