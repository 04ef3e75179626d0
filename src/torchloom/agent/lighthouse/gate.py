"""Where a lighthouse serves nodes that relay to it: their doors, their workers' news, their agents' requests.

Each such node keeps a copy of the record. A replica there gets its quorum only when its own node has the
record of it on disk: whatever a replica may have acted on is known on its node, also if the lighthouse's own
node is lost in the next moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable

import msgspec

from torchloom.agent.lighthouse import link_checks, records, tunnel
from torchloom.agent.lighthouse.records import BeaconRecord, ControlReply, ControlRequest, LinkMessage
from torchloom.agent.lighthouse.tunnel import Tunnel, TunnelFailed

log = logging.getLogger(__name__)

_STRANGERS = 64
"""Callers at a time that have not yet proven that they know the key."""
_LOOPBACK = "127.0.0.1"
_TRIED_WITHIN_S = link_checks.CONNECT_S + 2.0


class _Relayed:
    """A node that is connected."""

    def __init__(self, link: Tunnel) -> None:
        self.link = link
        self.kept = -1
        """Version of the record that it has."""
        self.tried: dict[int, asyncio.Future[frozenset[str]]] = {}
        """What it was asked to connect to."""


class NodeGate:
    def __init__(
        self,
        record: BeaconRecord,
        do: Callable[[ControlRequest], Awaitable[ControlReply]],
        enrol: Callable[[str, LinkMessage], Awaitable[None]],
    ) -> None:
        self._record = record
        self._do = do
        self._enrol = enrol
        self._relayed: dict[str, _Relayed] = {}
        self._kept = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._strangers = 0
        self._numbers = itertools.count(1)
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def connected(self) -> bool:
        return bool(self._relayed)

    async def open(self) -> None:
        """At the port that the other nodes know, if it is free."""
        if not self._record.key:
            return
        for port in dict.fromkeys((self._record.gate_port, 0)):
            for host in (self._record.address, ""):  # others may reach us at an address that is not ours
                try:
                    self._server = await asyncio.start_server(self._called, host or None, port)
                except OSError:
                    continue
                self._record.gate_port = self._server.sockets[0].getsockname()[1]
                return
        log.warning("no port for other nodes can be had: replicas of %s there cannot join", self._record.set)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()

    def publish(self) -> None:
        """The record has changed."""
        if self._relayed:
            message = msgspec.json.encode(LinkMessage(record=records.shared(self._record)))
            for one in self._relayed.values():
                one.link.write(message)

    async def recorded(self, door: str) -> None:
        """Until the node of this door has the record as it is now."""
        node, version = self._record.owners.get(door, ""), self._record.version
        if not node:
            return
        async with self._kept:
            await self._kept.wait_for(lambda: node in self._relayed and self._relayed[node].kept >= version)

    async def attempt(self, node: str, addresses: tuple[str, ...]) -> frozenset[str] | None:
        """Have a node connect to these. Returns which did not answer; None if the node does not say."""
        one = self._relayed.get(node)
        if one is None:
            return None
        number, said = next(self._numbers), asyncio.get_running_loop().create_future()
        one.tried[number] = said
        one.link.write(msgspec.json.encode(LinkMessage(number=number, attempt=addresses)))
        try:
            async with asyncio.timeout(_TRIED_WITHIN_S):
                return frozenset(await said)
        except TimeoutError:
            return None  # it is cut off, or an agent of the version before
        finally:
            one.tried.pop(number, None)

    # -- connections ----------------------------------------------------------------------------
    async def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._strangers >= _STRANGERS:
            writer.close()
            return
        self._serving.add(task)
        try:
            made, first = await self._proven(reader, writer)
            if first.term != self._record.term:
                raise TunnelFailed(f"{first.node} is of term {first.term}, not {self._record.term}")
            match first.to:
                case "link":
                    await self._serve_node(made, first)
                case "door" if first.door in self._record.doors:
                    await self._serve_stream(made, self._record.doors[first.door])
                case "news":
                    await self._serve_stream(made, self._record.news_port)
        except (TunnelFailed, OSError, TimeoutError, msgspec.MsgspecError) as error:
            log.debug("a caller was not served: %s", error)
        finally:
            self._serving.discard(task)
            writer.close()

    async def _proven(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Tunnel, LinkMessage]:
        """The first message can be read only if its sender knows the key."""
        self._strangers += 1
        try:
            made = await tunnel.answer(reader, writer, self._record.set, bytes.fromhex(self._record.key))
            async with asyncio.timeout(tunnel.CONNECT_S):
                return made, msgspec.json.decode(await made.read(), type=LinkMessage)
        finally:
            self._strangers -= 1

    async def _serve_stream(self, made: Tunnel, port: int) -> None:
        reader, writer = await asyncio.open_connection(_LOOPBACK, port)
        await tunnel.carry(made, reader, writer)

    async def _serve_node(self, link: Tunnel, first: LinkMessage) -> None:
        await self._enrol(first.node, first)
        before = self._relayed.pop(first.node, None)
        if before is not None:
            before.link.close()
        mine = self._relayed[first.node] = _Relayed(link)
        log.info("%s relays for %s", first.node, ", ".join(first.doors) or "no door yet")
        try:
            link.write(msgspec.json.encode(LinkMessage(welcome=True, record=records.shared(self._record))))
            while True:
                message = msgspec.json.decode(await link.read(), type=LinkMessage)
                if message.kept:
                    async with self._kept:
                        mine.kept = max(mine.kept, message.kept)
                        self._kept.notify_all()
                said = mine.tried.get(message.tried)
                if said is not None and not said.done():
                    said.set_result(frozenset(message.silent))
                if message.ask is not None:
                    reply = await self._answer(first.node, message.ask)
                    link.write(msgspec.json.encode(LinkMessage(number=message.number, reply=reply)))
        finally:
            if self._relayed.get(first.node) is mine:
                del self._relayed[first.node]

    async def _answer(self, node: str, ask: ControlRequest) -> ControlReply:
        if ask.do == "open" and ask.door not in self._record.closed:
            self._record.owners.setdefault(ask.door, node)
        own = ask.do in ("open", "close", "gone")
        if own and self._record.owners.get(ask.door, node) != node:
            return ControlReply(failed=f"{ask.door} is not a door of {node}")
        with contextlib.suppress(OSError, RuntimeError):
            return await self._do(ask)
        return ControlReply(failed="the lighthouse failed at it")
