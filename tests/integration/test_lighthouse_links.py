"""Replicas that reach their lighthouse, but not each other: left out, reported, and taken back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack

import grpc
from lighthouse_nodes import KEY, Node
from lighthouse_scenes import run, seat

from torchloom.home import Home
from torchloom.model.node import RendezvousRef
from torchloom.wire import torchft_messages
from torchloom.wire.torchft_messages import SERVICE, _bytes, _fields, _number

_BEAT_S = 0.1


class Manager:
    """Asks as torchft's manager does, with its address and whether its last step failed."""

    def __init__(self, name: str, door: str, address: str) -> None:
        self.name, self.address = name, address
        self._channel = grpc.aio.insecure_channel(door)
        self._beats = asyncio.create_task(self._beat())
        self.step = self.failures = 0

    async def _beat(self) -> None:
        call = self._channel.unary_unary(f"/{SERVICE}/Heartbeat")
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await call(_bytes(1, self.name.encode()), wait_for_ready=True)
            await asyncio.sleep(_BEAT_S)

    async def quorum(self, *, failed: bool) -> list[str]:
        """After a step that was made, or that failed."""
        self.step, self.failures = (self.step, self.failures + 1) if failed else (self.step + 1, 0)
        said = _bytes(1, self.name.encode()) + _bytes(2, self.address.encode())
        said += _number(4, self.step) + _number(5, 1) + _number(8, self.failures)
        call = self._channel.unary_unary(f"/{SERVICE}/Quorum")
        answer = await call(_bytes(1, said), wait_for_ready=True)
        (quorum,) = (value for number, value in _fields(answer) if number == 1)
        assert isinstance(quorum, bytes)
        members = (value for number, value in _fields(quorum) if number == 2)
        return [torchft_messages.heartbeat_request(one) for one in members if isinstance(one, bytes)]

    async def close(self) -> None:
        self._beats.cancel()
        await self._channel.close()


class Address:
    """Where a manager answers, or does not: the kernel drops what a full queue cannot take."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._callers: list[socket.socket] = []
        self._name = self._server.getsockname()

    def __str__(self) -> str:
        return f"http://127.0.0.1:{self._name[1]}"

    def go_silent(self) -> None:
        self._server.listen(0)
        for _ in range(8):
            caller = socket.socket()
            caller.setblocking(False)
            caller.connect_ex(self._name)
            self._callers.append(caller)

    def answer(self) -> None:
        """Again: from now on whoever connects is refused, which is an answer."""
        self.close()

    def close(self) -> None:
        for one in (*self._callers, self._server):
            one.close()


@contextlib.contextmanager
def addresses(count: int) -> Iterator[list[Address]]:
    made = [Address() for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            one.close()


def doors(index: int) -> RendezvousRef:
    return RendezvousRef(f"ft-r{index}", 1)


async def all_ask(managers: list[Manager], *, failed: bool = False) -> list[list[str]]:
    return await asyncio.gather(*(one.quorum(failed=failed) for one in managers))


def test_a_replica_that_others_cannot_connect_to_is_left_out_reported_and_taken_back() -> None:
    async def play(home: Home) -> None:
        async with AsyncExitStack() as after:
            nodes = [Node(home.root, name) for name in "abc"]
            for node in nodes:
                after.push_async_callback(node.close)
            places = after.enter_context(addresses(3))
            site, managers = nodes[0].site(), list[Manager]()
            for index, (node, place) in enumerate(zip(nodes, places, strict=True)):
                door, _ = await node.mine.open(seat(index, 3), doors(index), site, KEY)
                managers.append(Manager(f"m{index}", door, str(place)))
                after.push_async_callback(managers[-1].close)
            everybody = ["m0", "m1", "m2"]
            assert await all_ask(managers) == [everybody] * 3
            assert await all_ask(managers, failed=True) == [everybody] * 3, "all answer: they try again"

            places[2].go_silent()
            cut = asyncio.create_task(managers[2].quorum(failed=True))
            assert await all_ask(managers[:2], failed=True) == [["m0", "m1"]] * 2
            (notice,) = await nodes[0].mine.notices("ft", 0)
            assert notice.door == "ft-r2.g1" and notice.out and notice.others == 2
            assert notice.links == (("a", "c"), ("b", "c"))
            assert not await nodes[1].mine.notices("ft", 0), "only the lighthouse's own node reports"
            assert await all_ask(managers[:2]) == [["m0", "m1"]] * 2
            assert not cut.done(), "it waits"
            assert nodes[1].record().cut_off.keys() == {"ft-r2.g1"}, "a lighthouse that moves knows it"

            places[2].answer()
            while (found := await all_ask(managers[:2])) == [["m0", "m1"]] * 2:
                pass
            assert found == [everybody] * 2
            assert await cut == everybody, "its request was answered, it need not ask again"
            (back,) = await nodes[0].mine.notices("ft", notice.number)
            assert (back.door, back.links, back.out) == ("ft-r2.g1", (), False)
            assert not await nodes[0].mine.notices("ft", back.number)
            for index, node in reversed(list(enumerate(nodes))):
                await managers[index].close()
                await node.mine.close(doors(index))

    run(play)
