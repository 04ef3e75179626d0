"""A weaver that meets an event it cannot read stops leading; one that can read it takes over."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from weaver_story import SPEC, ObedientAgent, obeyed, running, until

from torchloom import __version__
from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.errors import BusUnavailable, UsageError
from torchloom.model.events import Envelope, NodeReachable, TimerFired
from torchloom.model.fleet import JobState
from torchloom.model.job import JobSpec
from torchloom.model.messages import Receipt
from torchloom.weaver.presence import Presences
from torchloom.wire import codec, schema_versions, subjects

NEWER = codec.encode(Envelope("new", "w9", TimerFired(timer="none"), schema=schema_versions.EVENTS + 1))


def test_it_stops_leading_says_why_and_another_one_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        async with obeyed(hub) as (old, agent):
            await old.submit("j", SPEC, {}, "me")
            await until(old, lambda: old.fleet.jobs["j"].state is JobState.RUNNING, "runs")
            before = await hub.bus().append(subjects.weaver_event("timer"), NEWER, id="new") - 1
            await until(old, lambda: old.blocked, "it stops")
            assert not old.active and not old.ready
            assert old.fleet.seq <= before, "nothing after it is applied"
            assert f"(torchloom {__version__}) cannot read event {before + 1}" in old.blocked
            assert "schema 2" in old.blocked and "upgrade it" in old.blocked
            with pytest.raises(BusUnavailable, match="cannot read event"):
                await old.submit("k", SPEC, {}, "me")
            with pytest.raises(BusUnavailable, match="cannot read event"):
                await old.stop("j", "me")
            # From here on everybody who starts to read knows the next schema: a newer weaver.
            reads = codec._known(codec._guarded(codec._envelope.decode), schema_versions.EVENTS + 1)
            monkeypatch.setattr(codec, "decode_envelope", reads)
            async with running(hub, "w2") as new:
                await until(new, lambda: new.active, "it leads")
                assert new.fleet.jobs["j"].state is JobState.RUNNING and not new.blocked
                await agent.die(new.fleet.jobs["j"].workers[0].ref, 1)
                await until(new, lambda: new.fleet.jobs["j"].generation == 2, "it recovers jobs")
                assert not old.active and old.blocked

    asyncio.run(scenario())


def test_an_event_with_content_of_another_version_stops_it_as_well() -> None:
    kind = {"event": "moon-phase", "phase": 3}
    wrong = {"event": "timer-fired", "timer": 7}
    for body in (kind, wrong):
        data = msgspec.msgpack.encode(
            {"id": "new", "source": "w9", "body": body, "sent_ns": 0, "session": ""}
        )

        async def scenario(data: bytes = data) -> None:
            hub = MemoryHub()
            async with obeyed(hub) as (weaver, _):
                await hub.bus().append(subjects.weaver_event("timer"), data, id="new")
                await until(weaver, lambda: weaver.blocked, "it stops")
                assert not weaver.active
                assert "holds what this version does not know" in weaver.blocked

        asyncio.run(scenario())


def test_bytes_that_are_no_event_stop_nobody() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        async with obeyed(hub) as (weaver, _):
            for at, data in enumerate((b"", b"\xff\xff", msgspec.msgpack.encode({"id": "x", "body": 3}))):
                seq = await hub.bus().append(subjects.weaver_event("timer"), data, id=f"bad{at}")
            await until(weaver, lambda: weaver.fleet.seq >= seq, "they are passed over")
            assert weaver.active and not weaver.blocked

    asyncio.run(scenario())


def test_what_could_not_be_read_again_is_not_recorded() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        async with obeyed(hub) as (weaver, _):
            with pytest.raises(UsageError, match="could not be read again"):
                await weaver._stream.say("timer", TimerFired(timer=7))  # type: ignore[arg-type]
            assert weaver.active and not weaver.blocked

    asyncio.run(scenario())


def test_fields_of_a_later_version_are_left_out_of_what_is_read() -> None:
    fields = msgspec.to_builtins(SPEC) | {"of_tomorrow": 1, "policy": {"of_tomorrow": 2}}
    fields["restarts"] = fields.get("restarts", {}) | {"of_tomorrow": 3}
    assert msgspec.convert(fields, JobSpec).world_size == SPEC.world_size


def test_an_agent_cannot_stop_every_weaver_with_a_number() -> None:
    async def scenario() -> None:
        async with obeyed(MemoryHub()) as (weaver, agent):
            body = NodeReachable(node=agent.node)
            data = codec.encode(Envelope("thief", agent.node, body, schema=999))
            seq = await agent.bus.append(subjects.node_event(agent.node), data, id="thief")
            await until(weaver, lambda: weaver.fleet.seq >= seq, "it is passed over")
            assert weaver.active and not weaver.blocked

    asyncio.run(scenario())


class OldAgent(ObedientAgent):
    """Refuses every command as too new."""

    async def _obey(self, message: object) -> None:
        receipt = Receipt(False, 0, "the agent of n1 is too old for this command", too_old=True)
        await self.bus.respond(message, codec.encode(receipt))  # type: ignore[arg-type]


def test_a_command_that_an_agent_is_too_old_for_is_known_at_the_node() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        agent = OldAgent(MemoryBus(hub))
        async with running(hub, "w1") as weaver:
            await agent.join()
            await until(weaver, lambda: weaver.active and "n1" in weaver.fleet.nodes, "ready")
            await weaver.submit("j", SPEC, {}, "me")
            await until(weaver, lambda: weaver.refusals, "it is refused")
            assert weaver.refusals == {"n1": "the agent of n1 is too old for this command"}

    asyncio.run(scenario())


def test_weavers_know_of_each_other_and_forget_who_is_silent() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        async with running(hub, "w1") as first, running(hub, "w2") as second:
            for one in (first, second):
                await until(one, lambda one=one: {w.name for w in one.weavers()} == {"w1", "w2"}, "both")
            assert first.weavers()[0].name == "w1" and first.weavers()[0].version == __version__
        now_s = [0.0]
        watched = Presences(MemoryBus(hub), second._stream, clock=lambda: now_s[0])
        own = first._presences.own()
        message = type("Message", (), {"data": codec.encode(own), "subject": subjects.presence("w1")})()
        await watched.hear(message)
        assert len(watched.weavers()) == 2
        now_s[0] = 60.0
        assert [w.name for w in watched.weavers()] == ["w2"]

    asyncio.run(scenario())
