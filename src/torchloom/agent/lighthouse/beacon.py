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
from torchloom.agent.lighthouse.control_socket import ControlSocket
from torchloom.agent.lighthouse.gate import NodeGate
from torchloom.agent.lighthouse.link_watch import LinkWatch
from torchloom.agent.lighthouse.listeners import Listeners
from torchloom.agent.lighthouse.records import BeaconRecord, ControlReply, ControlRequest, LinkMessage
from torchloom.core.quorum import (
    QuorumCandidate,
    QuorumRules,
    excuse,
    fall_silent,
    form,
    is_held,
    leave,
    recalled,
    repeated,
    settle,
)
from torchloom.model.quorum import QuorumMember
from torchloom.wire import torchft_messages

log = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_TICK_S = 0.1
"""How often time alone may complete a quorum; events complete it at once."""
_LATE_S = 0.5
"""A look that is later than this: this process did not run, and heartbeats may lie unread."""
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
        self._state = records.state_of(record, now)
        known = self._state.candidates
        self._servers: dict[str, grpc.aio.Server] = {}
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        """Open quorum requests, by replica id."""
        self._listeners = Listeners(record.changes, record.doors, self._save, self._leaving, self._is_held)
        # Those of a node that was lost with the lighthouse before this one may be waited for in a collective.
        self._listeners.tell_gone(record.quorum_id, [id for id in record.members if id not in known])
        self._left: dict[str, tuple[str, ...]] = {}
        """By door, the replica ids of those that said that they make no further step."""
        self._content, self._published = b"", -1
        """What other nodes keep, and the version of it that they were sent."""
        self._gate = NodeGate(record, self._do, self._enrol)
        self._links = LinkWatch(
            record, self._state, self._gate.attempt, self._seated, self._try_quorum, self._tell_gone
        )
        self._agents = ControlSocket(self._do)
        self._used = now
        """When a replica last sent something."""
        self.over = asyncio.Event()

    # -- life -----------------------------------------------------------------------------------
    async def run(self, control: socket.socket) -> None:
        """Serve until the last door is closed, or nobody is left who could use it."""
        news = await self._serve_news()
        self._record.news_port = news.sockets[0].getsockname()[1]
        for door, port in self._record.doors.items():
            await self._listen(door, port)
        await self._gate.open()
        self._save()
        agents = await asyncio.start_unix_server(self._agents.serve, sock=control)
        ended, looked_s = False, time.monotonic()
        try:
            while not self.over.is_set():
                late_s, looked_s = time.monotonic() - looked_s - _TICK_S, time.monotonic()
                if late_s > _LATE_S:
                    excuse(self._state, late_s)
                self._drop_silent()
                self._try_quorum()
                self._links.look(looked_s)
                used = max(self._used, self._agents.used_s)
                if not self._agents.connected and not self._gate.connected and looked_s - used > _IDLE_S:
                    ended = True
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TICK_S):
                        await self.over.wait()
            ended = ended or not self._record.doors
        finally:
            agents.close()
            news.close()
            self._links.close()
            self._gate.close()
            self._agents.close()
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
        record.answered, record.outdated = tuple(state.answered.values()), state.outdated
        record.left_out, record.cut_off = state.left_out, state.cut_off
        if not record.awaited:  # until then what others know counts, and they compare versions
            known = state.candidates
            record.members = {id: known[id].door for id in state.previous if id in known}
            self._count_version()
        records.write(self._path, record)
        if record.version != self._published:
            self._published = record.version
            self._gate.publish()

    def _count_version(self) -> None:
        """What others keep has changed; most quorums change nothing of it."""
        now = msgspec.json.encode(msgspec.structs.replace(records.shared(self._record), version=0))
        if now != self._content:
            self._content = now
            self._record.version += 1

    # -- doors ----------------------------------------------------------------------------------
    async def _open(self, door: str) -> int:
        if door in self._record.closed:
            raise RuntimeError(f"{door} was closed for good")
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
        self._state.left_out.pop(door, None)
        self._links.forget(door)
        self._record.owners.pop(door, None)
        self._record.closed[:] = [*self._record.closed, door][-records.CLOSED_KEPT :]
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
        self._listeners.tell_gone(self._state.quorum_id, ids)

    def _drop_silent(self) -> None:
        """Of other nodes. What ends or stops on this one is reported by its agent."""
        if self._record.awaited:
            return  # it is not connected with all of them yet
        near = self._record.doors.keys() - self._record.owners.keys()
        ids = fall_silent(time.monotonic(), self._state, self._rules, near)
        if ids:
            log.info("nothing is heard of %s: the others continue without", ", ".join(ids))
            self._refuse(ids)
            self._tell_gone(ids)

    def _leaving(self, door: str) -> None:
        """Its script has ended, its process has not: the others do not wait for it."""
        ids = self._leave(door)
        if ids:
            self._left[door] = ids
            log.info("%s has made its last step: %s", door, ", ".join(ids))
            self._try_quorum()

    def _leave(self, door: str) -> tuple[str, ...]:
        ids = leave(self._state, door)
        self._refuse(ids)
        return ids

    def _refuse(self, ids: tuple[str, ...]) -> None:
        """Who asks for a quorum gets none; a living one asks again."""
        for id in ids:
            waiting = self._waiting.pop(id, None)
            if waiting is not None:
                waiting.cancel()

    # -- other nodes ----------------------------------------------------------------------------
    async def _enrol(self, node: str, first: LinkMessage) -> None:
        """A node is connected, or again: its doors are those that it names, and it may know more."""
        record = self._record
        if first.record is not None and (node in record.awaited or first.record.version > record.version):
            records.keep(record, first.record)
            self._state.quorum_id = max(self._state.quorum_id, record.quorum_id)
            self._state.formed, self._state.previous = record.formed, tuple(record.members)
            self._state.answered = {}
        for door in first.doors:
            if door in record.closed:
                continue
            record.owners[door] = node
            await self._open(door)
        for door in [door for door, owner in record.owners.items() if owner == node]:
            if door not in first.doors:
                await self._close(door)
        now = time.monotonic()
        for id, door in record.members.items():
            if door in first.doors and door in record.doors:
                self._state.candidates.setdefault(id, QuorumCandidate(door, now)).seen_s = now
        if node in record.awaited:
            record.awaited.remove(node)
        self._save()

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
        again = repeated(time.monotonic(), self._state, self._rules, member)
        if again.members:
            log.info("quorum %d of %s again: %s", self._state.quorum_id, self._record.set, again.reason)
            await self._gate.recorded(door)
            return self._answer(again.members)
        candidate.member, candidate.asked_s = member, time.monotonic()
        self._links.asked(door, member)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[member.replica_id] = answer
        self._try_quorum()
        try:
            found = await answer
            await self._gate.recorded(door)
            return found
        finally:
            if self._waiting.get(member.replica_id) is answer:  # the caller gave up
                del self._waiting[member.replica_id]
                candidate.member = candidate.asked_s = None

    def _answer(self, members: tuple[QuorumMember, ...]) -> bytes:
        said = self._state.outdated
        raw = [
            torchft_messages.at_step(one.raw, said[one.replica_id]) if one.replica_id in said else one.raw
            for one in members
        ]
        return torchft_messages.quorum_response(self._state.quorum_id, raw, time.time())

    def _try_quorum(self) -> None:
        if self._record.awaited:
            return
        why = recalled(time.monotonic(), self._state, self._rules)
        if why:
            for door in list(self._state.left_out):
                self._seat(door, "", why)
            self._links.release(why)
        formed = form(time.monotonic(), self._state, self._rules)
        if not formed.members or self._links.must_wait(formed.members):
            return
        candidates = self._state.candidates
        self._listeners.decide([(candidates[member.replica_id].door, member) for member in formed.members])
        before = self._state.quorum_id
        number = settle(self._state, formed.members)
        self._links.settled()
        if number != before:
            ids = [member.replica_id for member in formed.members]
            log.info("quorum %d of %s: %s; %s", number, self._record.set, ", ".join(ids), formed.reason)
        self._save()  # before anybody knows it: whoever misses the answer can have it again
        answer = self._answer(formed.members)
        for member in formed.members:
            waiting = self._waiting.pop(member.replica_id, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    def _seat(self, door: str, out: str, why: str) -> None:
        """Leave what is behind this door out of the next quorums, or take it back."""
        if door not in self._record.doors or (door in self._state.left_out) == bool(out):
            return
        before = dict(self._state.left_out)
        if out:
            self._state.left_out[door] = out
        else:
            del self._state.left_out[door]
        try:
            self._seated(door)
        except OSError:  # whoever asked learns that it was not done
            self._state.left_out.clear()
            self._state.left_out.update(before)
            raise
        log.info("%s is %s: %s", door, "left out" if out else "taken back", out or why)

    def _seated(self, door: str) -> None:
        self._save()
        self._listeners.tell_door(door, {"held": self._is_held(door)})

    def _is_held(self, door: str) -> bool:
        return is_held(self._state, door)

    # -- agents ---------------------------------------------------------------------------------
    async def _do(self, request: ControlRequest) -> ControlReply:
        match request.do:
            case "open":
                return ControlReply(port=await self._open(request.door), news_port=self._record.news_port)
            case "close":
                await self._close(request.door)
            case "gone":
                self._gone(request.door)
            case "leave-out" | "take-back" if self._record.awaited:
                return ControlReply(away=True)  # it does not know all doors yet
            case "leave-out":
                self._seat(request.door, request.why or "slow", "")
                self._try_quorum()
            case "take-back":
                self._seat(request.door, "", request.why)
                self._try_quorum()
            case "status":
                reason = form(time.monotonic(), self._state, self._rules).reason
                awaited = tuple(self._record.awaited)
                if awaited:
                    reason = f"waiting for the records of {', '.join(awaited)}"
                ids = self._state.previous
                return ControlReply(
                    quorum_id=self._state.quorum_id, members=ids, reason=reason, awaited=awaited
                )
            case "change":
                self._listeners.propose(request.version, request.values, request.at_step, request.kind)
            case "withdraw":
                self._listeners.withdraw(request.version, request.why)
            case "move":
                if request.site is not None and request.site.term > self._record.term:
                    records.move(self._record, request.site)
                    records.write(self._path, self._record)
                    self.over.set()  # started again, it is what the record says
            case "links":
                self._record.notices = [one for one in self._record.notices if one.number > request.version]
                return ControlReply(notices=tuple(self._record.notices))
            case "outcome":
                return ControlReply(outcome=self._listeners.outcome(request.version))
        return ControlReply()
