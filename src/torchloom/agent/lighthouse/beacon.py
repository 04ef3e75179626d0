"""A lighthouse for one torchft job. It serves torchft's own protocol, so torchft's managers need no change.

Each generation of each replica has a door: a port of its own. The door says who is calling, whatever the
caller writes into its replica id, and it is closed for good when that generation ends. So neither a replica
of another job nor a process that already counts as dead can join. core/quorum.py decides who is in a quorum.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from pathlib import Path

import grpc
import msgspec

from torchloom.agent.lighthouse import records
from torchloom.agent.lighthouse.listeners import Listeners
from torchloom.agent.lighthouse.records import BeaconRecord, ControlReply, ControlRequest
from torchloom.core.quorum import QuorumCandidate, QuorumRules, QuorumState, form, leave, settle
from torchloom.wire import torchft_messages

log = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_TICK_S = 0.1
"""How often time alone may complete a quorum; events complete it at once."""
_LAST_READ_S = 3.0
"""A replica that ended well is reported as ended this much later, when the others have read all it sent."""
_IDLE_S = 60.0
"""A lighthouse that neither an agent nor a replica has used for this long ends."""


class Beacon:
    def __init__(self, path: Path, record: BeaconRecord) -> None:
        self._path = path
        self._record = record
        self._rules = QuorumRules(record.size, record.min_replicas)
        now = time.monotonic()
        # Members of the last quorum count as alive until their heartbeats show it, or do not.
        known = {
            id: QuorumCandidate(door, now) for id, door in record.members.items() if door in record.doors
        }
        self._state = QuorumState(known, tuple(record.members), record.quorum_id, record.formed)
        self._servers: dict[str, grpc.aio.Server] = {}
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        """Open quorum requests, by replica id."""
        self._listeners = Listeners(record.changes, record.doors, self._save, self._leaving)
        self._left: dict[str, tuple[str, ...]] = {}
        """By door, the replica ids of those that said that they make no further step."""
        self._agents: set[asyncio.StreamWriter] = set()
        self._used = now
        self.over = asyncio.Event()

    # -- life -----------------------------------------------------------------------------------
    async def run(self, control: socket.socket) -> None:
        """Serve until the last door is closed, or nobody is left who could use it."""
        news = await self._serve_news()
        self._record.news_port = news.sockets[0].getsockname()[1]
        for door, port in self._record.doors.items():
            await self._listen(door, port)
        self._save()
        agents = await asyncio.start_unix_server(self._control, sock=control)
        ended = False
        try:
            while not self.over.is_set():
                self._try_quorum()
                if not self._agents and time.monotonic() - self._used > _IDLE_S:
                    ended = True
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TICK_S):
                        await self.over.wait()
            ended = ended or not self._servers
        finally:
            agents.close()
            news.close()
            for writer in self._agents:
                writer.close()  # their handlers then end by themselves
            self._listeners.close()
            if ended:
                self._path.unlink(missing_ok=True)
            await asyncio.gather(*(server.stop(None) for server in self._servers.values()))

    async def _serve_news(self) -> asyncio.Server:
        try:
            return await asyncio.start_server(self._listeners.serve, _HOST, self._record.news_port)
        except OSError:  # somebody took the port meanwhile: replicas then learn of deaths by their own means
            return await asyncio.start_server(self._listeners.serve, _HOST, 0)

    def _save(self) -> None:
        record, state = self._record, self._state
        record.quorum_id, record.formed = state.quorum_id, state.formed
        record.members = {id: state.candidates[id].door for id in state.previous if id in state.candidates}
        records.write(self._path, record)

    # -- doors ----------------------------------------------------------------------------------
    async def _open(self, door: str) -> int:
        if door not in self._servers:
            self._record.doors[door] = await self._listen(door, 0)
            self._save()
        return self._record.doors[door]

    async def _listen(self, door: str, port: int) -> int:
        async def quorum(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
            return await self._ask(door, data, context)

        async def heartbeat(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
            self._seen(door, torchft_messages.heartbeat_request(data))
            return b""

        handlers = {
            "Quorum": grpc.unary_unary_rpc_method_handler(quorum),
            "Heartbeat": grpc.unary_unary_rpc_method_handler(heartbeat),
        }
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        service = grpc.method_handlers_generic_handler(torchft_messages.SERVICE, handlers)
        server.add_generic_rpc_handlers((service,))
        bound = server.add_insecure_port(f"{_HOST}:{port}")
        await server.start()
        self._servers[door] = server
        return int(bound)

    async def _close(self, door: str) -> None:
        self._gone(door)
        server = self._servers.pop(door, None)
        self._record.doors.pop(door, None)
        if server is not None:
            await server.stop(None)
        if self._servers:
            self._save()
        else:
            self.over.set()

    def _gone(self, door: str) -> None:
        """What is behind this door has ended: the others learn it now."""
        if door in self._left:
            ids, self._left[door] = self._left[door], ()
            if ids:  # what it sent in its last collective may still be on its way: nothing is ended at once
                asyncio.get_running_loop().call_later(_LAST_READ_S, self._tell_gone, ids)
            return
        ids = self._leave(door)
        if not ids:
            return
        log.info("%s has ended: %s", door, ", ".join(ids))
        self._tell_gone(ids)
        self._try_quorum()

    def _tell_gone(self, ids: tuple[str, ...]) -> None:
        self._listeners.tell({"quorum": self._state.quorum_id, "gone": ids})

    def _leaving(self, door: str) -> None:
        """Its script has ended, its process has not: the others do not wait for it."""
        ids = self._leave(door)
        if ids:
            self._left[door] = ids
            log.info("%s has made its last step: %s", door, ", ".join(ids))
            self._try_quorum()

    def _leave(self, door: str) -> tuple[str, ...]:
        ids = leave(self._state, door)
        for id in ids:
            waiting = self._waiting.pop(id, None)
            if waiting is not None:
                waiting.cancel()
        return ids

    # -- managers -------------------------------------------------------------------------------
    def _seen(self, door: str, replica_id: str) -> QuorumCandidate | None:
        """The candidate of this id; None if the id is that of another door, or its script has ended."""
        now = self._used = time.monotonic()
        if door in self._left:
            return None
        known = self._state.candidates.setdefault(replica_id, QuorumCandidate(door, now))
        if known.door != door:
            return None
        known.seen_s = now
        return known

    async def _ask(self, door: str, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        member = torchft_messages.quorum_request(data)
        candidate = self._seen(door, member.replica_id)
        if candidate is None or door not in self._record.doors:
            why = f"{member.replica_id} is not the replica that this door of {self._record.set} is for"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, why)
            raise AssertionError("abort raises")
        candidate.member, candidate.asked_s = member, time.monotonic()
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[member.replica_id] = answer
        self._try_quorum()
        try:
            return await answer
        finally:
            if self._waiting.get(member.replica_id) is answer:  # the caller gave up
                del self._waiting[member.replica_id]
                candidate.member = candidate.asked_s = None

    def _try_quorum(self) -> None:
        formed = form(time.monotonic(), self._state, self._rules)
        if not formed.members:
            return
        candidates = self._state.candidates
        self._listeners.decide([(candidates[member.replica_id].door, member) for member in formed.members])
        before = self._state.quorum_id
        number = settle(self._state, formed.members)
        if number != before:
            ids = [member.replica_id for member in formed.members]
            log.info("quorum %d of %s: %s; %s", number, self._record.set, ", ".join(ids), formed.reason)
            self._save()
        raw = [member.raw for member in formed.members]
        answer = torchft_messages.quorum_response(number, raw, time.time())
        for member in formed.members:
            waiting = self._waiting.pop(member.replica_id, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    # -- agents and survivors -------------------------------------------------------------------
    async def _control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._agents.add(writer)
        try:
            while line := await reader.readline():
                self._used = time.monotonic()
                try:
                    reply = await self._do(msgspec.json.decode(line, type=ControlRequest))
                except (msgspec.MsgspecError, OSError, RuntimeError) as error:
                    reply = ControlReply(failed=str(error))
                writer.write(msgspec.json.encode(reply) + b"\n")
                await writer.drain()
        except OSError:
            pass  # that agent is gone; the next one connects
        finally:
            self._agents.discard(writer)
            self._used = time.monotonic()
            writer.close()

    async def _do(self, request: ControlRequest) -> ControlReply:
        match request.do:
            case "open":
                return ControlReply(port=await self._open(request.door), news_port=self._record.news_port)
            case "close":
                await self._close(request.door)
            case "gone":
                self._gone(request.door)
            case "status":
                reason = form(time.monotonic(), self._state, self._rules).reason
                ids = self._state.previous
                return ControlReply(quorum_id=self._state.quorum_id, members=ids, reason=reason)
            case "change":
                self._listeners.propose(request.version, request.values, request.at_step, request.kind)
            case "withdraw":
                self._listeners.withdraw(request.version, request.why)
            case "outcome":
                return ControlReply(outcome=self._listeners.outcome(request.version))
        return ControlReply()
