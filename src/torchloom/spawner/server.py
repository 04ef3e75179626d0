"""The spawner's loop: one listening socket, at most one agent, JSON lines, no thread.

Owns connections and the life of the spawner itself (warming, idle, leaving). Forking and waiting are done by
`children`. A new connection replaces the old one, because an agent that comes back has lost its former self.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torchloom import __version__
from torchloom.private import make_private
from torchloom.spawner.build_beside import BuildBeside
from torchloom.spawner.children import Children
from torchloom.spawner.refusal import Refused
from torchloom.spawner.unix_socket import usable_address
from torchloom.spawner.warm import Warmth, thread_count
from torchloom.wire import schema_versions

_INBOUND_LIMIT = 64 << 20
"""Longest request: a start carries the whole environment of every worker."""
_OUTBOUND_LIMIT = 8 << 20
"""An agent that reads nothing while this much is waiting for it is as good as gone."""
_FENCE_EVERY_S = 0.5
_LATER_S = 5.0
STARTING = ("start", "store", "reserve")
"""Requests that fork, and so wait until warming is over."""
_PATIENCE = 10
"""How many idle periods to wait for an agent that has not yet received an exit, or whose store is kept."""


class Agent:
    """The connected agent: its socket and what is half read and half written."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.inbound = b""
        self.outbound = b""

    def send(self, message: Mapping[str, Any]) -> None:
        self.outbound += json.dumps(message).encode() + b"\n"

    def flush(self) -> bool:
        """Write what the socket takes; False when the connection is useless."""
        while self.outbound:
            try:
                sent = self.socket.send(self.outbound)
            except BlockingIOError:
                return len(self.outbound) < _OUTBOUND_LIMIT
            except OSError:
                return False
            self.outbound = self.outbound[sent:]
        return True

    def receive(self) -> tuple[list[bytes], bool]:
        """Complete lines, and whether the connection is still open."""
        alive = True
        while True:
            try:
                data = self.socket.recv(1 << 20)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                alive = False
                break
            self.inbound += data
            if len(self.inbound) > _INBOUND_LIMIT and b"\n" not in self.inbound:
                self.inbound, alive = b"", False  # nobody of ours says so much in one line
                break
        *lines, self.inbound = self.inbound.split(b"\n")
        return lines, alive


class Server:
    """Serves until asked to leave. `run` returns at the end; in a new worker it raises Become."""

    def __init__(self, path: Path, key: str, idle_s: float, cold: bool) -> None:
        self._pid = os.getpid()
        self._path = path
        self._key = key
        self._idle_s = idle_s
        self._warming = not cold
        self.children = Children(path, key)
        self._agent: Agent | None = None
        self._postponed: list[tuple[Agent, dict[str, Any]]] = []
        self._alone_since = time.monotonic()
        self._fenced_s = 0.0
        self._leaving = False
        self._leave_now = False
        self._lock = _take_lock(path)
        self._listener = _listen(path)
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        # poll rather than epoll: an epoll instance is shared with forked children, who could change it.
        self._selector = selectors.PollSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._catch_signals()

    def _catch_signals(self) -> None:
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake the loop: the default SIGCHLD does not
        signal.signal(signal.SIGTERM, self._told_to_leave)
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)

    def _told_to_leave(self, *_: object) -> None:
        self._leave_now = True

    # -- the loop -------------------------------------------------------------------------------
    def waited_for(self) -> bool:
        """Whether a request waits until warming is over."""
        return bool(self._postponed)

    def warmed(self, warmth: Warmth) -> None:
        """Warming is over: from now on requests are done, beginning with those that waited."""
        self.children.warmth = warmth
        self._warming = False
        postponed, self._postponed = self._postponed, []
        for agent, request in postponed:
            if agent is self._agent:
                self._answer(agent, request)
        self._flush()  # the loop would first wait for something to happen

    def run(self, later: Callable[[], None] | None = None) -> None:
        """Serve. `later` is called once, when those who waited have had time to begin."""
        due_s = time.monotonic() + _LATER_S
        build = BuildBeside()
        while not self._over():
            self.turn(timeout_s=1.0)
            if later is not None and time.monotonic() > due_s:
                later()
                later = None
                build.begin()
            build.look()
        build.end()
        self._say_goodbye()

    def pump(self) -> None:
        """A turn without waiting, between two imports."""
        self.turn(timeout_s=0)
        if self._leave_now:
            self._say_goodbye()
            os._exit(0)  # in the middle of somebody's import: there is nothing to unwind to

    def turn(self, timeout_s: float) -> None:
        if os.getpid() != self._pid:
            os._exit(70)  # a child must never get here: there would be two spawners on one socket
        for key, events in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wake_read:
                with contextlib.suppress(BlockingIOError):
                    self._wake_read.recv(4096)
            elif (
                self._agent is not None
                and key.fileobj is self._agent.socket
                and events & selectors.EVENT_READ
            ):
                self._read(self._agent)
        if time.monotonic() - self._fenced_s > _FENCE_EVERY_S:
            self._fenced_s = time.monotonic()
            self.children.fence()
        for ended in self.children.reap():
            if self._agent is not None:
                self._agent.send({"exit": ended})
        self._flush()

    def _over(self) -> bool:
        if self._leave_now:
            return True
        busy = bool(self.children.workers())
        if self._leaving:
            return not busy
        if self._agent is not None or busy:
            return False
        owed = bool(self.children.exits or self.children.stores())
        return time.monotonic() - self._alone_since > self._idle_s * (_PATIENCE if owed else 1)

    def _say_goodbye(self) -> None:
        if not self.children.workers():
            self.children.end_stores()
        if self._agent is not None:
            self._agent.socket.settimeout(1.0)
            with contextlib.suppress(OSError):
                self._agent.socket.sendall(self._agent.outbound)
        with contextlib.suppress(OSError):
            self._path.unlink()
        with contextlib.suppress(OSError):
            _lock_path(self._path).unlink()

    def abandon(self) -> None:
        """In a new child: close our ends, or a later collection would close descriptors of the user's."""
        if self._agent is not None:
            self._agent.socket.close()
        for end in (self._listener, self._wake_read, self._wake_write):
            end.close()
        self.children.reserves.drop(0, None)
        os.close(self._lock)

    # -- the agent ------------------------------------------------------------------------------
    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # gone again before we looked, or no descriptor free: it will try again
        uid = peer_uid(connection)
        if uid != os.geteuid():
            print(f"spawner: refused a connection of user {uid}", file=sys.stderr, flush=True)
            connection.close()
            return
        self._drop_agent()
        self._agent = Agent(connection)
        self._selector.register(connection, selectors.EVENT_READ)
        for ended in self.children.exits.values():
            self._agent.send({"exit": ended})

    def _drop_agent(self) -> None:
        if self._agent is not None:
            self._selector.unregister(self._agent.socket)
            self._agent.socket.close()
            self._agent = None
            self._alone_since = time.monotonic()

    def _read(self, agent: Agent) -> None:
        lines, alive = agent.receive()
        for line in lines:
            request = read_request(line)
            if request is None:
                print("spawner: a message that is no request; connection closed", file=sys.stderr, flush=True)
                alive = False
                break
            if self._warming and (request["do"] in STARTING or request.get("when") == "warm"):
                self._postponed.append((agent, request))
            else:
                self._answer(agent, request)
        if not alive and agent is self._agent:
            self._drop_agent()

    def _answer(self, agent: Agent, request: dict[str, Any]) -> None:
        handlers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "start": lambda r: self.children.start(r["workers"]),
            "store": lambda r: self.children.keep_store(
                r["job"],
                int(r["generation"]),
                r.get("host") or "127.0.0.1",
                int(r.get("port") or 0),
                r.get("env"),
            ),
            "reserve": lambda r: self.children.prepare(int(r["workers"]), r.get("host")),
            "state": lambda _: self._state(),
            "forget": lambda r: self.children.forget(r["pids"]),
            "quit": self._quit,
        }
        handler = handlers.get(request["do"])
        try:
            if isinstance(schema := request.get("schema", 1), int) and schema > schema_versions.SPAWNER:
                raise Refused(
                    f"this spawner (torchloom {__version__}) is too old for the request: "
                    f"it has schema {schema}, the spawner reads up to {schema_versions.SPAWNER}"
                )
            if handler is None:
                raise Refused(f"a spawner cannot do {request['do']!r}")
            if self._leaving and request["do"] in STARTING:
                raise Refused("this spawner is shutting down and starts nothing")
            agent.send({"id": request["id"], "result": handler(request)})
        except (Refused, OSError) as error:
            agent.send({"id": request["id"], "error": str(error)})
        except Exception as error:  # noqa: BLE001  # top of a service: exits of its workers would be lost with it
            agent.send({"id": request["id"], "error": f"bad request: {error!r}"})

    def _flush(self) -> None:
        if self._agent is None:
            return
        if not self._agent.flush():
            self._drop_agent()
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._agent.outbound else 0)
        if self._selector.get_key(self._agent.socket).events != wanted:
            self._selector.modify(self._agent.socket, wanted)

    def _quit(self, request: dict[str, Any]) -> dict[str, Any]:
        self._leaving = True
        self._leave_now = self._leave_now or bool(request.get("at_once"))
        return {"workers": [c.pid for c in self.children.workers()]}

    def _state(self) -> dict[str, Any]:
        warmth = self.children.warmth
        return {
            "pid": os.getpid(),
            "version": __version__,
            "schema": schema_versions.SPAWNER,
            "key": self._key,
            "state": "warming" if self._warming else "cold" if warmth.cold else "warm",
            "torch": warmth.torch,
            "import_s": warmth.seconds,
            "missing": warmth.missing,
            "problem": warmth.problem,
            "learned": warmth.learned.imported,
            "unsafe": warmth.learned.unsafe,
            "why_unsafe": warmth.learned.why,
            "threads": thread_count(),
            "reserves": [reserve.pid for reserve in self.children.reserves.workers],
            "children": [
                {
                    "pid": c.pid,
                    "start_ticks": c.start_ticks,
                    "kind": c.kind,
                    "job": c.job,
                    "generation": c.generation,
                    "box": c.box,
                    "port": c.port,
                }
                for c in self.children.live.values()
            ],
            "exits": list(self.children.exits.values()),
        }


def read_request(line: bytes) -> dict[str, Any] | None:
    """A request of the agent; None for anything that is none, however it is made."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(request, dict) or "id" not in request or not isinstance(request.get("do"), str):
        return None
    return request


def peer_uid(connection: socket.socket) -> int:
    """The user on the other end, from the kernel."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _take_lock(path: Path) -> int:
    """One spawner per socket: the lock goes with the process, however it ends."""
    try:
        make_private(path.parent)
    except PermissionError as error:
        raise Refused(f"{path.parent} must belong to this user and be closed to others: {error}") from error
    descriptor = os.open(_lock_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise Refused(f"another spawner serves {path}") from error
    return descriptor


def _listen(path: Path) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()  # left by a killed spawner; our lock proves that none serves it
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with usable_address(path) as address:
        listener.bind(address)
    os.chmod(path, 0o600)
    listener.listen(16)
    listener.setblocking(False)
    return listener
