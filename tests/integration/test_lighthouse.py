"""A lighthouse process and torchft's own client: doors, identity, deaths, and a lighthouse that is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from lighthouse_scenes import Replica, again, lighthouses, processes, run, seat
from torchft._torchft import LighthouseClient

from torchloom.agent.lighthouse.beacon import Beacon
from torchloom.agent.lighthouse.records import BeaconRecord, ControlRequest
from torchloom.agent.lighthouse.share_change import seat_replica
from torchloom.home import Home
from torchloom.model.effects import SeatReplica
from torchloom.model.events import EffectDone
from torchloom.model.node import RendezvousRef
from torchloom.model.quorum import ReplicaSeat


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

            both = await asyncio.gather(again(a), again(b))
            assert both == [(1, ["a", "b"])] * 2, "nobody forms one alone"
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


def test_an_answer_that_one_replica_has_missed_is_givenagain() -> None:
    """The lighthouse was killed when only one of two had its answer. That one waits for the other in a
    collective and asks for nothing."""

    async def scene(home: Home) -> None:
        async with lighthouses(home) as mine:
            first, second = RendezvousRef("ft-r0", 1), RendezvousRef("ft-r1", 1)
            a = Replica("a", (await mine.open(seat(0), first))[0])
            b = Replica("b", (await mine.open(seat(1), second))[0])
            assert await asyncio.gather(a.quorum(), b.quorum()) == [(1, ["a", "b"])] * 2
            for process in processes(home):
                os.kill(process.pid, signal.SIGKILL)
            b.step = 0  # b never got it
            assert await again(b) == (1, ["a", "b"])
            assert await asyncio.gather(a.quorum(), b.quorum()) == [(1, ["a", "b"])] * 2
            for one in (a, b):
                one.die()
            await mine.close(second)
            await mine.close(first)

    run(scene)


def test_a_replica_that_made_a_step_without_the_others_gets_their_weights() -> None:
    """Both count two steps, but the others have repeated the second one without it."""

    async def scene(home: Home) -> None:
        async with lighthouses(home) as mine:
            first, second = RendezvousRef("ft-r0", 1), RendezvousRef("ft-r1", 1)
            a = Replica("a", (await mine.open(seat(0), first))[0])
            b = Replica("b", (await mine.open(seat(1), second))[0])
            for _ in range(2):
                await asyncio.gather(a.quorum(), b.quorum())
            assert (a.step, b.step) == (2, 2)
            a.step = 1  # it has not received what b sent last
            alone = asyncio.create_task(a.quorum())
            while not alone.done():  # its heartbeats bring it back, and then the others wait for it
                mine.gone("ft-r1", 1)  # it cannot be reached
                await asyncio.sleep(0.05)
            assert (await alone)[1] == ["a"]
            assert (a.step, b.step) == (2, 2)
            asked = asyncio.create_task(b.steps())
            while len(found := await a.steps()) == 1:  # until b has asked
                a.step = 2
            assert found == await asked == {"a": 2, "b": 1}, "torchft has it heal"
            for one in (a, b):
                one.die()
            await mine.close(second)
            await mine.close(first)

    run(scene)


def test_a_replica_is_left_out_and_taken_back() -> None:
    async def scene(home: Home) -> None:
        async with lighthouses(home) as mine:
            refs = [RendezvousRef(f"ft-r{index}", 1) for index in range(3)]
            found = [await mine.open(ReplicaSeat("ft", index, 3), ref) for index, ref in enumerate(refs)]
            a, b, c = (Replica(name, at[0]) for name, at in zip("abc", found, strict=True))
            assert await asyncio.gather(*(x.quorum() for x in (a, b, c))) == [(1, ["a", "b", "c"])] * 3
            reader, writer = await asyncio.open_connection(*found[2][1].split(":"))
            writer.write(b'{"port": %d, "rank": 0}\n' % int(found[2][0].rpartition(":")[2]))
            assert await reader.readline() == b'{"changes":[],"asked":0}\n'
            await mine.seat("ft", "ft-r2", 1, out=True, why="slow")
            assert await reader.readline() == b'{"held":true}\n'
            held = asyncio.create_task(c.quorum())
            assert await asyncio.gather(a.quorum(), b.quorum()) == [(2, ["a", "b"])] * 2
            for process in processes(home):  # a lighthouse that is restarted remembers it
                os.kill(process.pid, signal.SIGKILL)
            with pytest.raises(Exception, match=r"."):
                await held
            assert await asyncio.gather(again(a), again(b)) == [(2, ["a", "b"])] * 2
            held = asyncio.create_task(again(c))
            await mine.seat("ft", "ft-r2", 1, out=False, why="it is tried again")
            while (both := await asyncio.gather(a.quorum(), b.quorum())) == [(2, ["a", "b"])] * 2:
                pass  # it has not asked yet, and nobody waits for it
            assert [*both, await held] == [(3, ["a", "b", "c"])] * 3
            await mine.seat("ft", "ft-r2", 1, out=True, why="slow")
            held = asyncio.create_task(c.quorum())
            for one, ref in ((a, refs[0]), (b, refs[1])):
                one.die()
                mine.gone(ref.job, ref.generation)
            assert await held == (4, ["c"]), "it has the only weights there are"
            writer.close()
            c.die()
            for ref in refs:
                await mine.close(ref)

    run(scene)


def test_an_answer_that_was_lost_is_no_refusal() -> None:
    """The lighthouse may have done it: it is asked again until it answers."""

    async def scene(home: Home) -> None:
        asked: list[dict[str, str]] = []

        async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                asked.append(json.loads(line))
                if len(asked) <= 3:
                    break
                writer.write(b"{}\n")
            writer.close()

        records = home.root / "agent" / "lighthouses"
        records.mkdir(parents=True)
        record = BeaconRecord(set="ft", size=2, min_replicas=1, doors={"ft-r0.g1": 1})
        (records / "ft.json").write_bytes(msgspec.json.encode(record))
        home.sockets.mkdir(parents=True, exist_ok=True)
        server = await asyncio.start_unix_server(dies, home.sockets / "lighthouse-ft")
        async with lighthouses(home) as mine:
            effect = SeatReplica(
                id="e-1", cause=1, reason="slow", node="n", job="ft-r0", set="ft", generation=1, out=True
            )
            host: Any = SimpleNamespace(lighthouses=mine, node="n")
            assert await seat_replica(host, effect) == EffectDone(node="n", effect="e-1")
            assert asked == [{"do": "leave-out", "door": "ft-r0.g1", "why": "slow"}] * 4
            (records / "ft.json").unlink()
        server.close()

    run(scene)


def test_a_leave_out_that_cannot_be_recorded_is_not_done(tmp_path: Path) -> None:
    async def scene() -> None:
        record = BeaconRecord(set="ft", size=2, min_replicas=1, doors={"ft-r0.g1": 1})
        beacon = Beacon(tmp_path / "no such directory" / "ft.json", record)
        with pytest.raises(OSError, match="no such directory"):
            await beacon._do(ControlRequest(do="leave-out", door="ft-r0.g1"))
        assert not record.left_out, "whoever asked hears that it failed"

    asyncio.run(scene())


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


@pytest.mark.parametrize("unread", ["a request", "an answer"])
def test_a_lighthouse_that_dies_is_started_again_whatever_was_on_its_way(unread: str) -> None:
    async def scene(home: Home) -> None:
        async with lighthouses(home) as mine:
            ref = RendezvousRef("ft-r0", 1)
            a = Replica("a", (await mine.open(ReplicaSeat("ft", 0, 1), ref))[0])
            assert await a.quorum() == (1, ["a"])
            (old,) = processes(home)
            if unread == "a request":  # then the connection ends with an error, and nobody reads it
                old.suspend()
                writer = mine._links["ft"]._writer
                assert writer is not None
                writer.write(b"{")
                await writer.drain()
            else:  # whoever asked was cancelled
                asked = asyncio.create_task(mine.status("ft"))
                await asyncio.sleep(0)
                asked.cancel()
                while not asked.done():
                    await asyncio.sleep(0.02)
                assert (await mine.open(ReplicaSeat("ft", 0, 1), ref))[0] == a.address, "its own answer"
            old.kill()
            assert await again(a) == (1, ["a"])
            a.die()
            await mine.close(ref)

    run(scene)
