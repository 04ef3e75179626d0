"""History is dropped behind verified snapshots, and everything that reads it still works."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import msgspec
import pytest
from weaver_story import SPEC, ObedientAgent, running, until

from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.core.history import trimming
from torchloom.errors import NotFound, SnapshotsLost
from torchloom.model.events import Envelope, TimerFired
from torchloom.model.fleet import JobState
from torchloom.weaver import dropping
from torchloom.weaver.service import Weaver
from torchloom.weaver.snapshot import ANCHORS, NEWEST, Snapshots, pack, unpack
from torchloom.wire import codec, subjects

KEEP = 100


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropping, "LOOK_EVERY_S", 0.01)


def pass_time(hub: MemoryHub, count: int) -> None:
    for _ in range(count):
        body = codec.encode(Envelope(f"e{hub.last}", "w1", TimerFired(timer="none")))
        hub.store(subjects.weaver_event("timer"), body, f"e{hub.last}", None)
    hub.wake()


def first(hub: MemoryHub) -> int:
    return hub.records[0].seq


async def age(hub: MemoryHub, weaver: Weaver, times: int) -> None:
    """Let so much happen that history is dropped so many times."""
    for _ in range(times):
        before = first(hub)
        for _ in range(4):
            pass_time(hub, KEEP)
            await until(weaver, lambda: weaver.fleet.seq >= hub.last, "applied")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    while first(hub) == before:
                        await asyncio.sleep(0.01)
            if first(hub) > before:
                break
        assert first(hub) > before, "history was dropped"


@contextlib.asynccontextmanager
async def aged(hub: MemoryHub, agent: ObedientAgent) -> AsyncIterator[Weaver]:
    """A weaver with a job that failed once, whose beginning is dropped from the stream."""
    async with running(hub, "w1", KEEP) as weaver:
        await agent.join()
        await until(weaver, lambda: weaver.active and "n1" in weaver.fleet.nodes, "ready")
        await weaver.submit("j", SPEC, {}, "me")
        await until(weaver, lambda: weaver.fleet.jobs["j"].state is JobState.RUNNING, "runs")
        await agent.die(weaver.fleet.jobs["j"].workers[1].ref, None, 9)
        await until(weaver, lambda: weaver.fleet.jobs["j"].generation == 2, "recovers")
        await until(weaver, lambda: weaver.fleet.jobs["j"].state is JobState.RUNNING, "runs again")
        began = weaver.fleet.seq
        await age(hub, weaver, 2)
        assert first(hub) > began
        yield weaver


def test_a_long_lived_service_keeps_a_bounded_history_and_everything_works() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        agent = ObedientAgent(MemoryBus(hub))
        async with aged(hub, agent) as weaver:
            await age(hub, weaver, 3)
            kept = hub.last - first(hub)
            assert KEEP <= kept <= 4 * KEEP
            anchors = await Snapshots(MemoryBus(hub)).anchors(hub.last)
            assert len([seq for seq in anchors if seq >= first(hub) - 1]) >= 2
            assert len(weaver.fleet.incidents) == 1, "incidents are part of the state"
            # Its last decision is gone from the stream, and it still decides.
            await agent.die(weaver.fleet.jobs["j"].workers[0].ref, None, 9)
            await until(weaver, lambda: weaver.fleet.jobs["j"].generation == 3, "recovers")
            await until(weaver, lambda: weaver.fleet.jobs["j"].state is JobState.RUNNING, "runs again")
            state = weaver.fleet
        async with running(hub, "w2", KEEP) as later:
            await until(later, lambda: later.active, "leads")
            assert later.fleet.jobs == state.jobs and later.fleet.incidents == state.incidents
            assert not await later.reach_back(0), "the first events are gone"
            oldest = first(hub) - 1
            assert await later.reach_back(oldest)
            told = later.notices(oldest, 100_000)
            assert told is not None and told[0].seq == first(hub)
            await until(later, lambda: "n1" in later.fleet.nodes, "knows the node")
            await agent.die(later.fleet.jobs["j"].workers[0].ref, None, 9)
            await until(later, lambda: later.fleet.jobs["j"].generation == 4, "recovers")

    asyncio.run(scenario())


def test_a_damaged_snapshot_is_passed_over_and_nothing_is_made_up() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        agent = ObedientAgent(MemoryBus(hub))
        async with aged(hub, agent):
            pass
        whole = dict(hub.objects)
        reference = await replayed(hub)
        for broken in (("snapshot.0",), NEWEST, (*NEWEST, newest_anchor(whole))):
            hub.objects = dict(whole)
            for number, slot in enumerate(broken):
                if slot in whole:
                    cut = len(whole[slot]) // 2
                    damaged = [whole[slot][:cut], whole[slot][:cut] + b"\xff" + whole[slot][cut + 1 :]]
                    hub.objects[slot] = damaged[number % 2]
            assert await replayed(hub) == reference, broken
        hub.objects = {name: data for name, data in whole.items() if name not in (*NEWEST, *ANCHORS)}
        with pytest.raises(SnapshotsLost, match="No snapshot can be read, and the events before"):
            await Snapshots(MemoryBus(hub)).load()

    asyncio.run(scenario())


def newest_anchor(objects: dict[str, bytes]) -> str:
    return max((slot for slot in ANCHORS if slot in objects), key=lambda slot: unpack(objects[slot]).seq)


async def replayed(hub: MemoryHub) -> bytes:
    """The fleet as a new weaver has it."""
    fleet = await Snapshots(MemoryBus(hub)).load()
    for record in hub.records:
        if record.seq > fleet.seq:
            dropping.apply_record(fleet, record)
    assert fleet.seq == hub.last
    return codec.encode(fleet)


def test_a_snapshot_that_replays_to_something_else_drops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        agent = ObedientAgent(MemoryBus(hub))
        async with aged(hub, agent) as weaver:
            slot = newest_anchor(hub.objects)
            wrong = unpack(hub.objects[slot])
            wrong.jobs["j"] = msgspec.structs.replace(wrong.jobs["j"], restarts=77)
            hub.objects[slot] = pack(wrong)
            before = first(hub)
            with caplog.at_level(logging.ERROR):
                while "does not give the fleet" not in caplog.text:
                    pass_time(hub, KEEP // 5)
                    await until(weaver, lambda: weaver.fleet.seq >= hub.last, "applied")
                    await asyncio.sleep(0.02)
                    assert hub.last < 20 * KEEP + before
            assert first(hub) == before
            await age(hub, weaver, 1)  # the anchors after it are verified among themselves

    asyncio.run(scenario())


def test_a_weaver_that_lost_the_lease_while_it_verified_says_and_drops_nothing() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        async with running(hub, "w1", KEEP) as weaver:
            await until(weaver, lambda: weaver.active, "leads")
            pass_time(hub, KEEP)
            await until(weaver, lambda: any(slot in hub.objects for slot in ANCHORS), "the first anchor")
            snapshots = Snapshots(MemoryBus(hub))
            anchors = await snapshots.anchors(hub.last)
            pass_time(hub, 3)
            await until(weaver, lambda: weaver.fleet.seq >= hub.last, "applied")
            late = dropping.Trimming(MemoryBus(hub), weaver._stream, snapshots, KEEP)
            objects = dict(hub.objects)
            step = dropping.Next("anchor", anchors[-1], "it is due")
            await late._take_anchor(step, weaver.fleet.epoch - 1)
            assert hub.objects == objects and weaver.fleet.trimmed == 0

    asyncio.run(scenario())


def test_a_weaver_that_fell_behind_what_was_dropped_starts_again() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        agent = ObedientAgent(MemoryBus(hub))
        bus = MemoryBus(hub)
        follower, stop = Weaver(bus, "w2"), asyncio.Event()
        async with running(hub, "w1", KEEP) as weaver:
            await until(weaver, lambda: weaver.active, "leads")
            await agent.join()
            task = asyncio.create_task(follower.run(stop))
            await until(follower, lambda: follower.ready, "follows")
            bus.partition()
            await age(hub, weaver, 2)
            bus.heal()
            with pytest.raises(Exception, match="were dropped before this weaver read them"):
                await task

    asyncio.run(scenario())


def test_an_incident_is_replayed_from_the_stream_until_its_events_are_dropped() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        agent = ObedientAgent(MemoryBus(hub))
        async with running(hub, "w1", KEEP) as weaver:
            await agent.join()
            await until(weaver, lambda: weaver.active and "n1" in weaver.fleet.nodes, "ready")
            await weaver.submit("j", SPEC, {}, "me")
            await until(weaver, lambda: weaver.fleet.jobs["j"].state is JobState.RUNNING, "runs")
            await agent.die(weaver.fleet.jobs["j"].workers[1].ref, None, 9)
            await until(weaver, lambda: weaver.fleet.jobs["j"].generation == 2, "recovers")
            await until(weaver, lambda: weaver.fleet.jobs["j"].state is JobState.RUNNING, "runs again")
            state = pack(weaver.fleet)
            found = await weaver.replay("j.1")
            assert pack(weaver.fleet) == state, "a replay changes nothing"
            died = next(step for step in found.steps if step.kind == "worker-exited")
            assert any(change.what == "rank 1" for change in died.changes) and died.decisions
            assert found.checked and not found.differing and not found.dropped_before
            with pytest.raises(NotFound):
                await weaver.replay("j.2")
            await age(hub, weaver, 2)
            late = await weaver.replay("j.1")
            # Its job still runs and nobody has made a step, so the incident is open; its beginning is gone.
            assert late.dropped_before >= first(hub)
            assert died.seq not in {step.seq for step in late.steps}

    asyncio.run(scenario())


def test_history_is_dropped_by_its_bytes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few large events: far from the number that is kept, and dropped all the same."""
    monkeypatch.setattr(trimming, "KEEP_BYTES", 100_000)
    monkeypatch.setattr(dropping, "KEEP_BYTES", 100_000)

    async def scenario() -> None:
        hub = MemoryHub()
        async with running(hub, "w1", 100_000) as weaver:
            await until(weaver, lambda: weaver.active, "leads")
            async with asyncio.timeout(120):
                while first(hub) == 1:
                    for _ in range(400):
                        id = f"e{hub.last}"
                        body = codec.encode(Envelope(id, "w1", TimerFired(timer="x" * 1000)))
                        hub.store(subjects.weaver_event("timer"), body, id, None)
                    hub.wake()
                    await until(weaver, lambda: weaver.fleet.seq >= hub.last, "applied")
                    await asyncio.sleep(0.05)
            assert len(hub.records) < 100_000

    asyncio.run(scenario())
