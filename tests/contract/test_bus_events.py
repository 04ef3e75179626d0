"""What every bus promises about the event stream: one order, no loss, no duplicate, conditions that hold."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import Any

import pytest

from torchloom.bus.protocol import MAX_MESSAGE_BYTES, Bus, Record
from torchloom.errors import BusUnavailable, Conflict, StreamRewound, UsageError

SUBJECT = "loom.v1.event.weaver"


async def take(bus: Bus, after: int, count: int) -> list[Record]:
    found: list[Record] = []
    async with aclosing(bus.read(after)) as records:
        async for record in records:
            found.append(record)
            if len(found) == count:
                break
    return found


async def test_append_and_read_in_order_with_the_servers_time(stage: Any) -> None:
    writer, reader = await stage.open(), await stage.open()
    before_ns = time.time_ns()
    sequences = [await writer.append(SUBJECT, b"%d" % number, id=f"id-{number}") for number in range(50)]
    assert sequences == list(range(1, 51))
    records = await take(reader, 0, 50)
    assert [(record.seq, record.data) for record in records] == [(n + 1, b"%d" % n) for n in range(50)]
    stamps = [record.at_ns for record in records]
    assert stamps == sorted(stamps)
    assert before_ns - 1_000_000_000 < stamps[0] <= time.time_ns() + 1_000_000_000
    assert {record.subject for record in records} == {SUBJECT}


async def test_one_order_over_all_subjects_for_all_readers(stage: Any) -> None:
    first, second = await stage.open(), await stage.open()
    await asyncio.gather(
        *(first.append("loom.v1.event.node.a.x", b"", id=f"a{n}") for n in range(30)),
        *(second.append("loom.v1.event.node.b.x", b"", id=f"b{n}") for n in range(30)),
    )
    one, other = await asyncio.gather(take(first, 0, 60), take(second, 0, 60))
    assert one == other


async def test_the_same_id_is_stored_once(stage: Any) -> None:
    bus = await stage.open()
    first = await bus.append(SUBJECT, b"a", id="same")
    assert await bus.append(SUBJECT, b"a", id="same") == first
    assert await bus.append("loom.v1.event.other", b"a", id="same") == first
    assert await bus.append(SUBJECT, b"b", id="next") == first + 1
    assert await bus.last_seq() == 2


async def test_expect_last_is_of_the_subject(stage: Any) -> None:
    bus, rival = await stage.open(), await stage.open()
    one = await bus.append(SUBJECT, b"1", id="1", expect_last=0)
    await bus.append("loom.v1.event.node.n1.x", b"", id="elsewhere")
    two = await bus.append(SUBJECT, b"2", id="2", expect_last=one)
    with pytest.raises(Conflict):
        await rival.append(SUBJECT, b"rival", id="3", expect_last=one)
    with pytest.raises(Conflict):
        await rival.append(SUBJECT, b"rival", id="4", expect_last=0)
    with pytest.raises(Conflict):
        await rival.append(SUBJECT, b"rival", id="5", expect_last=two + 100)
    assert await bus.last_seq(SUBJECT) == two
    assert [record.data for record in await take(bus, 0, 3)] == [b"1", b"", b"2"]


async def test_a_repeated_conditional_append_is_not_in_conflict_with_itself(stage: Any) -> None:
    """The acknowledgement was lost, and by now others have appended too."""
    bus = await stage.open()
    first = await bus.append(SUBJECT, b"mine", id="mine", expect_last=0)
    assert await bus.append(SUBJECT, b"mine", id="mine", expect_last=0) == first
    await bus.append(SUBJECT, b"other", id="other", expect_last=first)
    assert await bus.append(SUBJECT, b"mine", id="mine", expect_last=0) == first
    assert await bus.last_seq() == 2


async def test_only_one_of_many_rivals_wins(stage: Any) -> None:
    buses = [await stage.open() for _ in range(4)]
    outcomes = await asyncio.gather(
        *(bus.append(SUBJECT, b"", id=f"rival-{n}", expect_last=0) for n, bus in enumerate(buses)),
        return_exceptions=True,
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict"] * 3 + ["int"]


async def test_read_from_the_middle_then_live(stage: Any) -> None:
    bus = await stage.open()
    for number in range(10):
        await bus.append(SUBJECT, b"%d" % number, id=f"{number}")
    async with aclosing(bus.read(7)) as records:
        assert [(await anext(records)).seq for _ in range(3)] == [8, 9, 10]
        coming = asyncio.ensure_future(anext(records))
        await asyncio.sleep(0)
        assert not coming.done()
        await bus.append(SUBJECT, b"live", id="live")
        assert (await coming).data == b"live"


async def test_read_of_an_empty_stream_waits(stage: Any) -> None:
    bus = await stage.open()
    assert (await bus.first_seq(), await bus.last_seq(), await bus.last_seq(SUBJECT)) == (1, 0, 0)
    coming = asyncio.ensure_future(take(bus, 0, 1))
    await bus.append(SUBJECT, b"first", id="1")
    assert [record.data for record in await coming] == [b"first"]
    assert (await bus.first_seq(), await bus.last_seq()) == (1, 1)


async def test_read_beyond_the_end_says_the_stream_was_replaced(stage: Any) -> None:
    bus = await stage.open()
    await bus.append(SUBJECT, b"", id="1")
    with pytest.raises(StreamRewound):
        await take(bus, 2, 1)


async def test_a_slow_reader_loses_nothing(stage: Any) -> None:
    writer, reader = await stage.open(), await stage.open()
    await asyncio.gather(*(writer.append(SUBJECT, bytes(20_000), id=f"{n}") for n in range(300)))
    seen: list[int] = []
    async with aclosing(reader.read(0)) as records:
        async for record in records:
            seen.append(record.seq)
            if len(seen) % 50 == 0:
                await asyncio.sleep(0.05)
            if len(seen) == 300:
                break
    assert seen == list(range(1, 301))


async def test_append_while_cut_off_is_unavailable_and_can_be_repeated(stage: Any) -> None:
    bus = await stage.open()
    await bus.append(SUBJECT, b"before", id="before")
    await stage.cut()
    with pytest.raises(BusUnavailable):
        await bus.append(SUBJECT, b"during", id="during", timeout_s=0.2)
    with pytest.raises(BusUnavailable):
        await bus.append(SUBJECT, b"during", id="during", timeout_s=0.2)
    waiting = asyncio.ensure_future(bus.append(SUBJECT, b"during", id="during", timeout_s=120))
    await stage.mend()
    assert await waiting == 2
    assert await bus.append(SUBJECT, b"during", id="during") == 2
    assert [record.data for record in await take(bus, 0, 2)] == [b"before", b"during"]


async def test_reader_survives_being_cut_off_without_loss_or_duplicate(stage: Any) -> None:
    """On NATS: SIGKILL of the server and a restart on the same store, three times, while a writer is busy."""
    writer, reader = await stage.open(), await stage.open()
    acknowledged: list[int] = []
    done = asyncio.Event()

    async def write() -> None:
        number = 0
        while not done.is_set():
            acknowledged.append(await writer.append(SUBJECT, b"%d" % number, id=f"w{number}", timeout_s=120))
            number += 1
            await asyncio.sleep(0)

    seen: list[Record] = []

    async def read() -> None:
        async with aclosing(reader.read(0)) as records:
            async for record in records:
                seen.append(record)

    tasks = [asyncio.ensure_future(write()), asyncio.ensure_future(read())]
    for _ in range(3):
        target = len(seen) + 50
        while len(seen) < target:
            await asyncio.sleep(0.01)
        await stage.cut()
        await stage.mend()
    target = len(seen) + 50
    while len(seen) < target:
        await asyncio.sleep(0.01)
    done.set()
    await tasks[0]
    while len(seen) < len(acknowledged):
        await asyncio.sleep(0.01)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert acknowledged == list(range(1, len(acknowledged) + 1)), "nothing was stored twice"
    assert [record.seq for record in seen] == acknowledged
    assert [record.data for record in seen] == [b"%d" % n for n in range(len(acknowledged))]


async def test_close_ends_a_reader(stage: Any) -> None:
    bus = await stage.open()
    await bus.append(SUBJECT, b"", id="1")
    got = asyncio.Event()

    async def read() -> int:
        count = 0
        async for _ in bus.read(0):
            count += 1
            got.set()
        return count

    reading = asyncio.ensure_future(read())
    await got.wait()
    await bus.close()
    assert await reading == 1


async def test_what_no_stream_takes_is_refused(stage: Any) -> None:
    bus = await stage.open()
    for subject in ("loom.v1.telemetry.n1", "loom.v1.event.>", "loom.v1.event.*"):
        with pytest.raises(UsageError):
            await bus.append(subject, b"", id="1")
    with pytest.raises(UsageError, match="put_object"):
        await bus.append(SUBJECT, bytes(MAX_MESSAGE_BYTES + 1), id="1")


async def test_trimmed_events_are_gone_and_the_others_keep_their_place(stage: Any) -> None:
    bus, other = await stage.open(), await stage.open()
    for number in range(1, 11):
        subject = f"{SUBJECT}.early" if number <= 4 else SUBJECT
        assert await bus.append(subject, b"%d" % number, id=f"{number}") == number
    await bus.trim(6)
    await bus.trim(3)
    assert (await bus.first_seq(), await bus.last_seq()) == (7, 10)
    assert [record.seq for record in await take(other, 0, 4)] == [7, 8, 9, 10]
    assert await bus.last_seq(f"{SUBJECT}.early") == 0, "a subject whose events are gone has none"
    assert await bus.append(f"{SUBJECT}.early", b"", id="early", expect_last=0) == 11
    await bus.trim(11)
    assert (await bus.first_seq(), await bus.last_seq()) == (12, 11)
    assert await bus.append(SUBJECT, b"", id="later") == 12


async def test_what_is_stored_is_counted_by_subject(stage: Any) -> None:
    bus = await stage.open()
    for number in range(3):
        await bus.append("loom.v1.event.node.n1.report", b"x" * 100, id=f"a{number}")
    await bus.append("loom.v1.event.node.n2.report", b"x", id="b")
    await bus.append("loom.v1.event.weaver.lease", b"x", id="c")
    stored = await bus.stored("loom.v1.event.node.*.report")
    assert (stored.first_seq, stored.last_seq) == (1, 5) and stored.bytes >= 300
    assert stored.by_subject == {"loom.v1.event.node.n1.report": 3, "loom.v1.event.node.n2.report": 1}
    assert (await bus.stored()).by_subject == {}
    await bus.trim(3)
    assert (await bus.stored("loom.v1.event.>")).by_subject.keys() == {
        "loom.v1.event.node.n2.report",
        "loom.v1.event.weaver.lease",
    }


async def test_a_closed_door_refuses_one_nodes_events_and_an_open_one_takes_them(stage: Any) -> None:
    bus = await stage.open()
    assert await bus.takes_events(60.0)
    await bus.append("loom.v1.event.node.n1.report", b"", id="1")
    await bus.take_events(["loom.v1.event.weaver.>", "loom.v1.event.node.n2.report"])
    with pytest.raises(BusUnavailable):
        await bus.append("loom.v1.event.node.n1.report", b"", id="2", timeout_s=0.2)
    assert await bus.takes_events(60.0)
    await bus.append("loom.v1.event.node.n2.report", b"", id="3")
    await bus.append("loom.v1.event.weaver.lease", b"", id="4")
    await bus.take_events(["loom.v1.event.>"])
    await bus.take_events(["loom.v1.event.>"])
    assert await bus.append("loom.v1.event.node.n1.report", b"", id="2") == 4, "nothing else was stored"
