"""What the two roles may do on a real server. The memory bus checks no rights, so these run on NATS only."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from torchloom.bus.keys import new_seed
from torchloom.bus.nats import NatsBus
from torchloom.bus.protocol import Message
from torchloom.errors import BusUnsuitable, NotAllowed


async def ignore(message: Message) -> None: ...


async def test_an_agent_does_its_work(nats_stage: Any) -> None:
    weaver, agent = await nats_stage.open(), await nats_stage.open_agent()
    got: asyncio.Queue[Message] = asyncio.Queue()
    await weaver.subscribe("loom.v1.telemetry.*", got.put)

    async def obey(message: Message) -> None:
        await agent.respond(message, b"done")

    await agent.subscribe("loom.v1.command.n1", obey)
    await agent.subscribe("loom.v1.query.n1", obey)
    assert await weaver.request("loom.v1.command.n1", b"do", timeout_s=60) == b"done"
    assert await weaver.request("loom.v1.query.n1", b"what", timeout_s=60) == b"done"
    assert await agent.append("loom.v1.event.node.n1.report", b"", id="1") == 1
    await agent.publish("loom.v1.telemetry.n1", b"warm")
    assert (await got.get()).data == b"warm"


async def test_an_agent_cannot_speak_for_another_node(nats_stage: Any) -> None:
    weaver, agent = await nats_stage.open(), await nats_stage.open_agent()
    for subject in ("loom.v1.event.node.n2.exit", "loom.v1.event.weaver", "loom.v1.event.node.n1"):
        with pytest.raises(NotAllowed):
            await agent.append(subject, b"", id=subject, timeout_s=120)
    got: asyncio.Queue[Message] = asyncio.Queue()
    await weaver.subscribe("loom.v1.>", got.put)
    for subject in ("loom.v1.telemetry.n2", "loom.v1.command.n2", "loom.v1.command.n1"):
        await agent.publish(subject, b"forged")
    await agent.publish("loom.v1.telemetry.n1", b"")
    assert (await got.get()).subject == "loom.v1.telemetry.n1", "only its own telemetry came through"
    assert await weaver.last_seq() == 0


async def test_an_agent_hears_nothing_meant_for_others(nats_stage: Any) -> None:
    await nats_stage.open()
    agent = await nats_stage.open_agent()
    for subject in (
        "loom.v1.command.n2",
        "loom.v1.command.*",
        "loom.v1.event.>",
        "loom.v1.telemetry.n1",
        "_INBOX.>",
        "_INBOX_n2.>",
        ">",
    ):
        with pytest.raises(NotAllowed):
            await agent.subscribe(subject, ignore)


async def test_an_agent_has_no_stream_no_lease_no_object(nats_stage: Any) -> None:
    weaver, agent = await nats_stage.open(), await nats_stage.open_agent()
    await weaver.append("loom.v1.event.weaver", b"secret plan", id="1")
    await weaver.put_object("snapshot", b"secret state")
    with pytest.raises((NotAllowed, BusUnsuitable)):  # in the agent's account there is no JetStream at all
        await agent.provision()
    with pytest.raises(NotAllowed):
        await agent.last_seq()
    with pytest.raises(NotAllowed):
        await anext(agent.read(0))
    with pytest.raises(NotAllowed):
        await agent.lease("weaver", "agent", 60).acquire()
    for call in ("PURGE.LOOM_EVENTS", "MSG.GET.LOOM_EVENTS", "MSG.GET.OBJ_LOOM_OBJECTS"):
        with pytest.raises(NotAllowed):
            await agent.request(f"$JS.API.STREAM.{call}", b"", timeout_s=120)
    assert await weaver.last_seq() == 1


async def test_wrong_credentials_are_one_sentence_without_the_secret(nats_stage: Any) -> None:
    right = nats_stage.server.address("weaver")
    for wrong in (
        replace(right, seed="", user="weaver", password="guess-word"),
        replace(right, seed=new_seed()),
        replace(right, seed=""),
    ):
        with pytest.raises(NotAllowed) as caught:
            await NatsBus.connect(wrong, name="intruder", wait_s=60)
        assert "refused the credentials" in str(caught.value)
        assert "guess-word" not in str(caught.value)
        assert right.seed not in str(caught.value) + repr(right)
