"""One lighthouse for replicas on two nodes: relays, identity, a killed part, and a lighthouse that moves."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from lighthouse_nodes import KEY, Node
from lighthouse_scenes import Replica, again, processes, run

from torchloom.agent.lighthouse import records, tunnel
from torchloom.agent.lighthouse.keeper import LighthouseAway
from torchloom.core.quorum import QuorumRules
from torchloom.home import Home
from torchloom.model.node import RendezvousRef

FIRST, SECOND = RendezvousRef("ft-r0", 1), RendezvousRef("ft-r1", 1)


@asynccontextmanager
async def two(home: Home) -> AsyncIterator[tuple[Node, Node]]:
    a, b = Node(home.root, "a"), Node(home.root, "b")
    try:
        yield a, b
    finally:
        await a.close()
        await b.close()


def scene(play: Callable[[Node, Node], Awaitable[None]]) -> None:
    async def both(home: Home) -> None:
        async with two(home) as (a, b):
            await play(a, b)

    run(both)


def test_a_replica_of_another_node_joins_and_its_death_is_known_at_once() -> None:
    async def play(a: Node, b: Node) -> None:
        one = await a.replica(0, FIRST, a.site(), "one")
        other = await b.replica(1, SECOND, a.site(), "other")
        assert await asyncio.gather(again(one), again(other)) == [(1, ["one", "other"])] * 2
        assert b.record().quorum_id == 1, "its node knew the quorum before it did"
        news = a.record().news_port, b.record().news_port
        heard = [await asyncio.open_connection("127.0.0.1", port) for port in news]
        heard[1][1].write(b'{"door": "ft-r1.g1", "port": 1, "rank": 0}\n')
        assert await heard[1][0].readline() == b'{"changes":[],"asked":0}\n', "by its name, not by its port"
        other.die()
        alone = asyncio.create_task(one.quorum())
        b.mine.gone("ft-r1", 1)
        assert await alone == (2, ["one"])
        for reader, writer in heard:
            assert await reader.readline() == b'{"quorum":1,"gone":["other"]}\n', "on both nodes"
            writer.close()
        one.die()
        await b.mine.close(SECOND)
        await a.mine.close(FIRST)

    scene(play)


def test_a_replica_of_another_node_falls_silent_and_nobody_waits_for_it_in_a_collective() -> None:
    """Its host was cut off: nobody can say that it died. Whoever missed the news of it hears it later."""

    async def play(a: Node, b: Node) -> None:
        one = await a.replica(0, FIRST, a.site(), "one")
        other = await b.replica(1, SECOND, a.site(), "other")
        assert await asyncio.gather(again(one), again(other)) == [(1, ["one", "other"])] * 2
        heard = await asyncio.open_connection("127.0.0.1", a.record().news_port)
        other.die()  # here: it sends no heartbeats
        assert await heard[0].readline() == b'{"quorum":1,"gone":["other"]}\n'
        assert await again(one) == (2, ["one"])
        late = await asyncio.open_connection("127.0.0.1", b.record().news_port)
        late[1].write(b'{"door": "ft-r1.g1", "port": 1, "rank": 0}\n')
        assert await late[0].readline() == b'{"changes":[],"asked":0}\n'
        assert await late[0].readline() == b'{"quorum":1,"gone":["other"]}\n', "it learns why nobody answers"
        back = Replica("other", other.address)
        asked = asyncio.create_task(again(back))
        while (found := await again(one))[1] == ["one"]:
            assert found[0] == 2
        assert found == (3, ["one", "other"]) == await asked, "it is alive, and joins again"
        for writer in (heard[1], late[1]):
            writer.close()
        for replica in (one, back):
            replica.die()
        await b.mine.close(SECOND)
        await a.mine.close(FIRST)

    scene(play)


async def quorum_of(one: Replica, other: Replica) -> int:
    """The number of the next quorum that both are in."""

    async def together(replica: Replica) -> int:
        while (found := await again(replica))[1] != ["one", "other"]:
            pass
        return found[0]

    first, second = await asyncio.gather(together(one), together(other))
    assert first == second
    return first


def test_killed_parts_of_it_come_back_and_neither_a_stranger_nor_a_dead_generation_joins() -> None:
    async def play(a: Node, b: Node) -> None:
        one = await a.replica(0, FIRST, a.site(), "one")
        other = await b.replica(1, SECOND, a.site(), "other")
        assert await asyncio.gather(again(one), again(other)) == [(1, ["one", "other"])] * 2
        for node in (b, a):
            before, began_s = await quorum_of(one, other), time.monotonic()
            (old,) = processes(node.home)
            os.kill(old.pid, signal.SIGKILL)
            both = await quorum_of(one, other)
            if time.monotonic() - began_s < QuorumRules(2).heartbeat_timeout_s:  # nobody was silent for long
                assert both == before, f"the same quorum after {node.name}'s part was killed"

        port = a.record().gate_port
        with pytest.raises(tunnel.TunnelFailed):
            stranger = await tunnel.call("127.0.0.1", port, "ft", secrets.token_bytes(32))
            stranger.write(b'{"to": "news", "term": 1}')
            await stranger.read()
        with pytest.raises(tunnel.TunnelFailed):
            past = await tunnel.call("127.0.0.1", port, "ft", bytes.fromhex(KEY))
            past.write(b'{"to": "link", "node": "b", "term": 0}')
            await past.read()

        other.die()
        await a.mine.close(SECOND, "ft")  # b counts as lost; it is not, and relays again
        (relay,) = processes(b.home)
        os.kill(relay.pid, signal.SIGKILL)
        while not processes(b.home) or processes(b.home)[0].pid == relay.pid:
            await asyncio.sleep(0.02)
        zombie = Replica("zombie", f"127.0.0.1:{b.record().doors['ft-r1.g1']}")
        asked = asyncio.create_task(again(zombie))
        found = [await one.quorum() for _ in range(5)]
        assert found == [(both + 1, ["one"])] * 5
        assert not asked.done()
        await b.mine.close(SECOND)
        asked.cancel()
        for replica in (one, zombie):
            replica.die()
        await a.mine.close(FIRST)

    scene(play)


def test_a_lost_lighthouse_is_replaced_with_its_decisions_and_a_higher_quorum() -> None:
    async def play(a: Node, b: Node) -> None:
        one = await a.replica(0, FIRST, a.site(), "one")
        other = await b.replica(1, SECOND, a.site(), "other")
        assert await asyncio.gather(again(one), again(other)) == [(1, ["one", "other"])] * 2
        await b.mine.change("ft", 7, {"lr": 0.1}, 0)
        while not b.record().changes:
            await asyncio.sleep(0.02)
        await a.close()  # the host of a is lost
        for process in processes(a.home):
            os.kill(process.pid, signal.SIGKILL)
        one.die()
        asked = asyncio.create_task(again(other))
        await asyncio.sleep(0)
        assert not asked.done(), "without the lighthouse nothing is decided"
        assert await b.mine.move("ft", b.site(2, "c")) == ("c",)
        assert not asked.done(), "a third node has not given its record yet"
        assert await b.mine.move("ft", b.site(3)) == ()
        reader, writer = await asyncio.open_connection("127.0.0.1", b.record().news_port)
        writer.write(b'{"door": "ft-r1.g1", "port": 1, "rank": 0}\n')
        while b"gone" not in (news := await reader.readline()):
            pass
        assert news.endswith(b'"gone":["one"]}\n'), "nobody waits for it in a collective"
        writer.close()
        number, members = await asked
        assert number > records.QUORUMS_APART and members == ["other"]
        assert [change.version for change in b.record().changes] == [7]
        other.die()
        await b.mine.close(SECOND)

    scene(play)


def test_who_is_left_out_stays_so_when_the_lighthouse_moves() -> None:
    third = RendezvousRef("ft-r2", 1)

    async def play(a: Node, b: Node) -> None:
        one = await a.replica(0, FIRST, a.site(), "one", 3)
        other = await b.replica(1, SECOND, a.site(), "other", 3)
        slow = await b.replica(2, third, a.site(), "slow", 3)
        while "ft-r2.g1" not in a.record().doors:
            await asyncio.sleep(0.02)
        await b.mine.seat("ft", "ft-r2", 1, out=True, why="slow")  # through the relay
        assert a.record().left_out == {"ft-r2.g1": "slow"}
        held = asyncio.create_task(again(slow))
        assert await asyncio.gather(again(one), again(other)) == [(1, ["one", "other"])] * 2
        await a.close()
        for process in processes(a.home):
            os.kill(process.pid, signal.SIGKILL)
        one.die()
        assert await b.mine.move("ft", b.site(2, "c")) == ("c",)
        with pytest.raises(LighthouseAway):
            await b.mine.seat("ft", "ft-r2", 1, out=False, why="it does not know all doors yet")
        assert await b.mine.move("ft", b.site(3)) == ()
        number, members = await again(other)
        assert members == ["other"] and not held.done()
        await b.mine.seat("ft", "ft-r2", 1, out=False, why="it is tried again")
        while (found := await again(other))[1] == ["other"]:  # until it has asked
            assert found[0] == number
        assert found == (number + 1, ["other", "slow"]) == await held
        for replica in (other, slow):
            replica.die()
        await b.mine.close(SECOND)
        await b.mine.close(third)

    scene(play)
