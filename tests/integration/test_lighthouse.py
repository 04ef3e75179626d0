"""A lighthouse process and torchft's own client: doors, identity, deaths, and a lighthouse that is killed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from torchft._torchft import LighthouseClient

from torchloom.agent.lighthouse.keeper import Lighthouses
from torchloom.agent.tasks import Tasks
from torchloom.home import Home
from torchloom.model.node import RendezvousRef
from torchloom.model.quorum import ReplicaSeat

HANG_S = 150.0
LONG = timedelta(seconds=HANG_S)


@asynccontextmanager
async def lighthouses(home: Home) -> AsyncIterator[Lighthouses]:
    """As one agent has them; at its end only the agent's side is gone."""
    tasks = Tasks()
    made = Lighthouses(home, tasks)
    try:
        await made.adopt()
        yield made
    finally:
        await tasks.cancel()


def run(scene: Callable[[Home], Awaitable[None]]) -> None:
    """With a home of its own; no process of it may be left."""
    with tempfile.TemporaryDirectory(prefix="loom-lh-") as root:
        home = Home(Path(root) / "home")
        home.prepare()
        try:
            asyncio.run(_within(scene(home)))
            deadline = time.monotonic() + HANG_S
            while processes(home):
                assert time.monotonic() < deadline, "the lighthouse ends with its last door"
                time.sleep(0.02)
        finally:
            for process in processes(home):
                process.kill()
            shutil.rmtree(home.sockets, ignore_errors=True)


async def _within(work: Awaitable[None]) -> None:
    async with asyncio.timeout(2 * HANG_S):
        await work


def processes(home: Home) -> list[psutil.Process]:
    mine = str(home.root)
    found = psutil.process_iter(["cmdline", "status"])
    return [
        p
        for p in found
        if p.info["status"] != psutil.STATUS_ZOMBIE and any(mine in part for part in p.info["cmdline"] or ())
    ]


def seat(index: int) -> ReplicaSeat:
    return ReplicaSeat("ft", index, 2)


class Replica:
    """Heartbeats and asks like torchft's manager, with torchft's own client."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self._client = LighthouseClient(f"http://{address}", connect_timeout=LONG)
        self._over = threading.Event()
        self._beats = threading.Thread(target=self._beat, daemon=True)
        self._beats.start()

    def _beat(self) -> None:
        while not self._over.wait(0.1):
            try:
                self._client.heartbeat(self.name, timeout=LONG)
            except Exception:  # noqa: BLE001  the lighthouse is being started again
                continue

    async def quorum(self) -> tuple[int, list[str]]:
        found: Any = await asyncio.to_thread(self._client.quorum, self.name, LONG)
        return int(found.quorum_id), [one.replica_id for one in found.participants]

    def die(self) -> None:
        self._over.set()
        self._beats.join(HANG_S)


def test_replicas_meet_at_their_doors_and_a_death_is_known_at_once() -> None:
    async def scene(home: Home) -> None:
        async with lighthouses(home) as mine:
            first, second = RendezvousRef("ft-r0", 1), RendezvousRef("ft-r1", 1)
            a = Replica("a", (await mine.open(seat(0), first))[0])
            address, news = await mine.open(seat(1), second)
            b = Replica("b", address)
            reader, writer = await asyncio.open_connection(*news.split(":"))
            assert await asyncio.gather(a.quorum(), b.quorum()) == [(1, ["a", "b"])] * 2
            b.die()
            alone = asyncio.create_task(a.quorum())
            mine.gone("ft-r1", 1)
            assert await alone == (2, ["a"])
            assert await reader.readline() == b'{"quorum":1,"gone":["b"]}\n'
            writer.close()
            a.die()
            await mine.close(second)
            await mine.close(first)

    run(scene)


def test_neither_a_dead_generation_nor_another_replica_can_join() -> None:
    async def scene(home: Home) -> None:
        async with lighthouses(home) as mine:
            first, dead = RendezvousRef("ft-r0", 1), RendezvousRef("ft-r1", 1)
            a = Replica("a", (await mine.open(seat(0), first))[0])
            closed = (await mine.open(seat(1), dead))[0]
            fresh = Replica("b2", (await mine.open(seat(1), RendezvousRef("ft-r1", 2)))[0])
            await mine.close(dead)
            with pytest.raises(Exception, match=r"(?i)connect|closed|refused|transport|error"):
                await asyncio.to_thread(
                    lambda: LighthouseClient(f"http://{closed}", connect_timeout=timedelta(seconds=2)).quorum(
                        "b", timedelta(seconds=2)
                    )
                )
            assert await asyncio.gather(a.quorum(), fresh.quorum()) == [(1, ["a", "b2"])] * 2
            impostor = Replica("a", (await mine.open(seat(1), RendezvousRef("ft-r1", 3)))[0])
            with pytest.raises(Exception, match="is not the replica that this door of ft is for"):
                await impostor.quorum()
            for one in (a, fresh, impostor):
                one.die()
            for ref in (first, RendezvousRef("ft-r1", 2), RendezvousRef("ft-r1", 3)):
                await mine.close(ref)

    run(scene)


def test_a_killed_lighthouse_comes_back_with_its_doors_and_its_quorum() -> None:
    async def scene(home: Home) -> None:
        async with lighthouses(home) as mine:
            first, second = RendezvousRef("ft-r0", 1), RendezvousRef("ft-r1", 1)
            a = Replica("a", (await mine.open(seat(0), first))[0])
            b = Replica("b", (await mine.open(seat(1), second))[0])
            assert await asyncio.gather(a.quorum(), b.quorum()) == [(1, ["a", "b"])] * 2
            (old,) = processes(home)
            os.kill(old.pid, signal.SIGKILL)

            async def again(replica: Replica) -> tuple[int, list[str]]:
                while True:
                    try:
                        return await replica.quorum()
                    except Exception:  # noqa: BLE001  as the manager retries
                        await asyncio.sleep(0.1)

            assert await asyncio.gather(again(a), again(b)) == [(1, ["a", "b"])] * 2, "nobody forms one alone"
            assert [p.pid for p in processes(home)] != [old.pid]
        # The next agent adopts it.
        async with lighthouses(home) as mine:
            b.die()
            alone = asyncio.create_task(a.quorum())
            mine.gone("ft-r1", 1)
            assert await alone == (2, ["a"])
            a.die()
            await mine.close(first)
            await mine.close(second)

    run(scene)


def test_a_replica_whose_script_has_ended_is_not_waited_for_while_its_process_lives() -> None:
    """Its manager's own threads continue with their heartbeats; nothing of the others is broken yet."""

    async def scene(home: Home) -> None:
        async with lighthouses(home) as mine:
            first, second = RendezvousRef("ft-r0", 1), RendezvousRef("ft-r1", 1)
            a = Replica("a", (await mine.open(seat(0), first))[0])
            address, news = await mine.open(seat(1), second)
            b = Replica("b", address)
            assert await asyncio.gather(a.quorum(), b.quorum()) == [(1, ["a", "b"])] * 2
            reader, writer = await asyncio.open_connection(*news.split(":"))
            alone = asyncio.create_task(a.quorum())
            port = int(address.rpartition(":")[2])
            writer.write(b'{"port": %d, "rank": 0}\n{"leaving": true}\n' % port)
            assert await alone == (2, ["a"])
            assert await a.quorum() == (2, ["a"]), "heartbeats do not bring it back"
            assert await reader.readline() == b'{"changes":[],"asked":0}\n'
            mine.gone("ft-r1", 1)
            assert await reader.readline() == b'{"quorum":2,"gone":["b"]}\n', "its end is news"
            writer.close()
            for one in (a, b):
                one.die()
            await mine.close(second)
            await mine.close(first)

    run(scene)


def test_the_outcome_of_a_change_outlives_the_lighthouse() -> None:
    """A change may be what ends all replicas, and their lighthouse with them, before anybody asked."""

    async def scene(home: Home) -> None:
        async with lighthouses(home) as mine:
            only = RendezvousRef("ft-r0", 1)
            address, news = await mine.open(ReplicaSeat("ft", 0, 1), only)
            a = Replica("a", address)
            reader, writer = await asyncio.open_connection(*news.split(":"))
            writer.write(b'{"port": %d, "rank": 0}\n' % int(address.rpartition(":")[2]))
            await mine.change("ft", 1, {"max_steps": 5}, 0)
            assert await mine.outcome("ft", 1) is None
            while not json.loads(await reader.readline())["changes"]:
                pass
            writer.write(b'{"version": 1, "problem": ""}\n{"ask": 1}\n')
            while json.loads(await reader.readline())["asked"] != 1:
                pass
            await a.quorum()
            writer.write(b'{"version": 1, "changed": [], "trouble": ""}\n{"ask": 2}\n')
            while json.loads(await reader.readline())["asked"] != 2:
                pass
            writer.close()
            a.die()
            await mine.close(only)
            found = await mine.outcome("ft", 1)
            assert found is not None and found.step == 1
            assert await mine.outcome("ft", 1) == found

    run(scene)
