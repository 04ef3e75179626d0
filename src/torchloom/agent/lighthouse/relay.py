"""A node's part in a lighthouse that is on another node: doors and news on loopback, carried there encrypted.

Workers and the agent use it as they would use the lighthouse itself. It keeps a copy of the record, and
says so before any replica of this node learns a quorum: the lighthouse can be replaced from here (gate.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import time
from pathlib import Path

import msgspec

from torchloom.agent.lighthouse import records, tunnel
from torchloom.agent.lighthouse.control_socket import ControlSocket
from torchloom.agent.lighthouse.link_checks import unanswered
from torchloom.agent.lighthouse.records import BeaconRecord, ControlReply, ControlRequest, LinkMessage
from torchloom.agent.lighthouse.tunnel import Tunnel, TunnelFailed
from torchloom.agent.neighbour.channel import NeighbourFailed
from torchloom.agent.neighbour.channel import call as call_agent
from torchloom.agent.neighbour.door import GREETING

log = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_AGAIN_S = 0.1
_ANSWER_S = 5.0
_IDLE_S = 60.0


class Relay:
    def __init__(self, path: Path, record: BeaconRecord) -> None:
        assert record.site is not None
        self._path, self._record, self._site = path, record, record.site
        self._servers: dict[str, asyncio.Server] = {}
        self._link: Tunnel | None = None
        self._registered: set[str] = set()
        self._ready = asyncio.Condition()
        self._replies: dict[int, asyncio.Future[ControlReply]] = {}
        self._numbers = itertools.count(1)
        self._trying: set[asyncio.Task[None]] = set()
        self._agents = ControlSocket(self._do)
        self._carried = 0
        """Connections of workers."""
        self._used = time.monotonic()
        self.over = asyncio.Event()

    # -- life -----------------------------------------------------------------------------------
    async def run(self, control: socket.socket) -> None:
        """Serve until the last door is closed, or the lighthouse has moved."""
        news = await self._start_news()
        self._record.news_port = news.sockets[0].getsockname()[1]
        for door, port in list(self._record.doors.items()):
            await self._listen(door, port)
        self._save()
        agents = await asyncio.start_unix_server(self._agents.serve, sock=control)
        link = asyncio.create_task(self._keep_link())
        try:
            while not self.over.is_set():
                if self._agents.connected or self._carried:
                    self._used = time.monotonic()
                if time.monotonic() - max(self._used, self._agents.used_s) > _IDLE_S:
                    self._record.doors.clear()
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self.over.wait()
        finally:
            link.cancel()
            for server in (agents, news, *self._servers.values()):
                server.close()
            self._agents.close()
            if not self._record.doors:
                self._path.unlink(missing_ok=True)

    def _save(self) -> None:
        records.write(self._path, self._record)

    async def _start_news(self) -> asyncio.Server:
        try:
            return await asyncio.start_server(self._news, _HOST, self._record.news_port)
        except OSError:
            return await asyncio.start_server(self._news, _HOST, 0)

    # -- workers --------------------------------------------------------------------------------
    async def _listen(self, door: str, port: int) -> int:
        async def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._carry(LinkMessage(to="door", door=door, term=self._site.term), reader, writer)

        server = self._servers[door] = await asyncio.start_server(called, _HOST, port)
        self._record.doors[door] = bound = int(server.sockets[0].getsockname()[1])
        return bound

    async def _news(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._carry(LinkMessage(to="news", term=self._site.term), reader, writer)

    async def _carry(
        self, first: LinkMessage, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._carried += 1
        try:
            async with asyncio.timeout(_ANSWER_S), self._ready:
                await self._ready.wait_for(lambda: self._link is not None and self._knows(first.door))
            made = await self._call(first)
            await tunnel.carry(made, reader, writer)
        except (TunnelFailed, OSError, TimeoutError):
            pass  # the caller tries again
        finally:
            self._carried -= 1
            self._used = time.monotonic()
            writer.close()

    def _knows(self, door: str) -> bool:
        return not door or door in self._registered

    # -- the lighthouse -------------------------------------------------------------------------
    async def _call(self, first: LinkMessage) -> Tunnel:
        record, key = self._record, bytes.fromhex(self._record.key)
        if not record.gate_port:
            record.gate_port = await asyncio.to_thread(self._ask_port, key)
            self._save()
        try:
            made = await tunnel.call(self._site.address, record.gate_port, record.set, key)
        except TunnelFailed:
            record.gate_port = 0  # it may have another one now
            raise
        made.write(msgspec.json.encode(first))
        return made

    def _ask_port(self, key: bytes) -> int:
        try:
            asked = call_agent(self._site.address, self._site.port, GREETING + self._record.set, key)
            with asked:
                return int(asked.hear()["port"])
        except (NeighbourFailed, KeyError, TypeError, ValueError) as error:
            raise TunnelFailed(f"{self._site.node} does not say where the lighthouse is ({error})") from error

    async def _keep_link(self) -> None:
        said = ""
        while True:
            try:
                await self._follow_link()
            except (TunnelFailed, OSError, TimeoutError, msgspec.MsgspecError) as error:
                if str(error) != said:
                    said = str(error)
                    log.info("the lighthouse on %s is not reached: %s", self._site.node, error)
            finally:
                self._link = None
                self._registered.clear()
                for reply in self._replies.values():
                    reply.cancel()
                self._replies.clear()
            await asyncio.sleep(_AGAIN_S)

    async def _follow_link(self) -> None:
        record = self._record
        doors = tuple(record.doors)
        first = LinkMessage(
            to="link", node=record.node, term=self._site.term, doors=doors, record=records.shared(record)
        )
        link = await self._call(first)
        try:
            async with asyncio.timeout(_ANSWER_S):
                welcome = msgspec.json.decode(await link.read(), type=LinkMessage)
            if not welcome.welcome:
                raise TunnelFailed("it did not welcome this node")
            log.info("relaying to the lighthouse on %s", self._site.node)
            self._link = link
            self._keep(link, welcome)
            await self._register(doors)
            for door in [one for one in record.doors if one not in doors]:
                await self._register((door,))
                self._ask(ControlRequest(do="open", door=door))
            while True:
                message = msgspec.json.decode(await link.read(), type=LinkMessage)
                self._keep(link, message)
                if message.attempt:
                    trying = asyncio.create_task(self._try(link, message))
                    self._trying.add(trying)
                    trying.add_done_callback(self._trying.discard)
                waiting = self._replies.pop(message.number, None)
                if message.reply is not None and waiting is not None and not waiting.done():
                    waiting.set_result(message.reply)
        finally:
            link.close()

    async def _try(self, link: Tunnel, message: LinkMessage) -> None:
        """Report which replicas of other nodes do not answer this one."""
        silent = tuple(await unanswered(message.attempt))
        if self._link is link:
            link.write(msgspec.json.encode(LinkMessage(tried=message.number, silent=silent)))

    def _keep(self, link: Tunnel, message: LinkMessage) -> None:
        """On disk before the lighthouse learns that it is."""
        if message.record is None:
            return
        record = self._record
        record.version, record.quorum_id = message.record.version, message.record.quorum_id
        record.formed, record.members = message.record.formed, message.record.members
        record.changes, record.closed = message.record.changes, message.record.closed
        record.left_out, record.cut_off = message.record.left_out, message.record.cut_off
        self._save()
        link.write(msgspec.json.encode(LinkMessage(kept=record.version)))

    async def _register(self, doors: tuple[str, ...]) -> None:
        async with self._ready:
            self._registered |= set(doors)
            self._ready.notify_all()

    def _ask(self, request: ControlRequest) -> asyncio.Future[ControlReply] | None:
        if self._link is None:
            return None
        number = next(self._numbers)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        self._link.write(msgspec.json.encode(LinkMessage(number=number, ask=request)))
        return reply

    async def _answer(self, request: ControlRequest) -> ControlReply | None:
        """The lighthouse's own answer; None while it is not reached."""
        reply = self._ask(request)
        if reply is None:
            return None
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await reply
        except (TimeoutError, asyncio.CancelledError):
            if self.over.is_set():
                raise
            return None

    # -- the agent ------------------------------------------------------------------------------
    async def _do(self, request: ControlRequest) -> ControlReply:
        record = self._record
        match request.do:
            case "open":
                if request.door not in self._servers:
                    await self._listen(request.door, 0)
                    self._save()
                    if (reply := await self._answer(request)) is not None and not reply.failed:
                        await self._register((request.door,))
                return ControlReply(port=record.doors[request.door], news_port=record.news_port)
            case "close":
                await self._close(request.door)
            case "gone":
                self._ask(request)
            case "move":
                if request.site is not None and request.site.term > record.term:
                    records.move(record, request.site)
                    self._save()
                    self.over.set()  # started again, it is what the record says
            case "outcome" | "status":
                return await self._answer(request) or ControlReply()
            case "change" | "withdraw" | "leave-out" | "take-back":
                return await self._answer(request) or ControlReply(away=True)
        return ControlReply()

    async def _close(self, door: str) -> None:
        server = self._servers.pop(door, None)
        if server is not None:
            server.close()
        self._record.doors.pop(door, None)
        self._record.closed = [*self._record.closed, door][-records.CLOSED_KEPT :]
        if (reply := self._ask(ControlRequest(do="close", door=door))) is not None and not self._servers:
            with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(1.0):
                    await reply  # this process ends with its last door
        if self._servers:
            self._save()
        else:
            self.over.set()
