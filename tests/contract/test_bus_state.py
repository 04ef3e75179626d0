"""What every bus promises about the lease (one holder, growing epochs) and about objects."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from torchloom.bus.protocol import Lease
from torchloom.errors import BusUnavailable, TimedOut

T = TypeVar("T")


async def answered(ask: Callable[[], Awaitable[T]]) -> T:
    """What a lease says; it waits for no longer than its TTL, which is short here, so it is asked again."""
    while True:
        try:
            return await ask()
        except (BusUnavailable, TimedOut):
            await asyncio.sleep(0.02)


async def until_acquired(lease: Lease) -> int:
    while (epoch := await answered(lease.acquire)) is None:
        await asyncio.sleep(0.02)
    return epoch


async def test_one_holder_at_a_time(stage: Any) -> None:
    a, b = await stage.open(), await stage.open()
    first, second = a.lease("weaver", "a", 60), b.lease("weaver", "b", 60)
    assert (first.epoch, first.expired) == (None, True)
    epoch = await first.acquire()
    assert epoch is not None
    assert (first.epoch, first.expired) == (epoch, False)
    assert await second.acquire() is None
    assert await first.renew()
    assert await first.acquire() == epoch, "acquiring what one holds changes nothing"
    assert await second.acquire() is None
    assert not await second.renew()


async def test_leases_have_names(stage: Any) -> None:
    bus = await stage.open()
    assert await bus.lease("one", "a", 60).acquire() is not None
    assert await bus.lease("two", "b", 60).acquire() is not None


async def test_release_lets_the_next_in_at_once(stage: Any) -> None:
    a, b = await stage.open(), await stage.open()
    first, second = a.lease("weaver", "a", 3600), b.lease("weaver", "b", 3600)
    old = await first.acquire()
    assert old is not None
    await first.release()
    await first.release()
    assert first.epoch is None
    assert not await first.renew()
    new = await second.acquire()
    assert new is not None and new > old
    assert await first.acquire() is None


async def test_takeover_after_the_ttl_with_a_greater_epoch(stage: Any) -> None:
    a, b = await stage.open(), await stage.open()
    first, second = a.lease("weaver", "a", 0.3), b.lease("weaver", "b", 0.3)
    epochs = []
    for holder, other in [(first, second), (second, first)] * 2:
        epochs.append(await until_acquired(holder))
        assert not await answered(other.renew), "the old holder is told that it is one no more"
        assert other.epoch is None
    assert epochs == sorted(set(epochs))


async def test_a_renewed_lease_is_not_taken_over(stage: Any) -> None:
    a, b = await stage.open(), await stage.open()
    first, second = a.lease("weaver", "a", 1.0), b.lease("weaver", "b", 1.0)
    loop = asyncio.get_running_loop()
    epoch = await until_acquired(first)
    end = loop.time() + 2.0
    while loop.time() < end:
        renewed_s = loop.time()
        assert await answered(first.renew)
        if await answered(second.acquire) is not None:
            # This machine slept for a second: then a takeover is right.
            assert loop.time() - renewed_s >= 1.0
            return
        await asyncio.sleep(0.1)
    assert first.epoch == epoch


async def test_a_latecomer_need_not_wait_the_ttl_again(stage: Any) -> None:
    """The holder died long ago: whoever starts now finds an expired lease, not a fresh one."""
    a = await stage.open()
    first = a.lease("weaver", "a", 0.3)
    old = await until_acquired(first)
    await asyncio.sleep(0.4)
    new = await (await stage.open()).lease("weaver", "b", 3600).acquire()
    assert new is not None and new > old


async def test_only_one_of_many_candidates_wins(stage: Any) -> None:
    leases = [(await stage.open()).lease("weaver", f"c{n}", 60) for n in range(4)]
    outcomes = await asyncio.gather(*(lease.acquire() for lease in leases))
    assert sum(epoch is not None for epoch in outcomes) == 1


async def test_epochs_grow_over_a_cut(stage: Any) -> None:
    """On NATS: also over a SIGKILL of the server."""
    bus = await stage.open()
    first = bus.lease("weaver", "a", 0.2)
    old = await until_acquired(first)
    await stage.cut()
    await stage.mend()
    second = (await stage.open()).lease("weaver", "b", 60)
    new = await until_acquired(second)
    assert new > old
    while not bus.connected:
        await asyncio.sleep(0.01)
    assert not await answered(first.renew)


async def test_an_epoch_is_above_the_one_the_candidate_knows_of_and_stays_so(stage: Any) -> None:
    """The store of the leases may be made anew while the stream, which knows the epochs, stays."""
    a, b = await stage.open(), await stage.open()
    first, second = a.lease("weaver", "a", 3600), b.lease("weaver", "b", 3600)
    epoch = await first.acquire(above=1_000)
    assert epoch is not None and epoch > 1_000
    assert await first.renew() and first.epoch == epoch == await a.held_epoch("weaver")
    await first.release()
    later = await second.acquire()
    assert later is not None and later > epoch, "also for a candidate that knows of none"
    assert await b.held_epoch("weaver") == later


async def test_objects_of_three_mebibytes(stage: Any) -> None:
    a, b = await stage.open(), await stage.open()
    assert await b.get_object("snapshot") is None
    first, second = os.urandom(3 * 1024 * 1024), os.urandom(3 * 1024 * 1024 + 17)
    await a.put_object("snapshot", first)
    assert await b.get_object("snapshot") == first
    await a.put_object("snapshot", second)
    await a.put_object("another", b"small")
    await a.put_object("empty", b"")
    assert await b.get_object("snapshot") == second
    assert await b.get_object("another") == b"small"
    assert await b.get_object("empty") == b""


async def test_a_deleted_object_is_gone_for_everybody(stage: Any) -> None:
    a, b = await stage.open(), await stage.open()
    await a.put_object("env.one", os.urandom(300_000))
    await a.put_object("env.two", b"two")
    await b.delete_object("env.one")
    assert await a.get_object("env.one") is None
    assert await a.get_object("env.two") == b"two", "others stay"
    await b.delete_object("env.one")  # twice is once
    await b.delete_object("never")
    await a.put_object("env.one", b"again")
    assert await b.get_object("env.one") == b"again"
