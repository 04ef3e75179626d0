"""The agent's side of the spawner's socket: one blocking and one asyncio client over the same messages.

Owns the JSON lines that go to and fro and the records they become. It starts no spawner (`launch` does) and
keeps no state beyond the connection: exits are repeated by the spawner on every connection until forgotten.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from torchloom.errors import SpawnFailed, TimedOut
from torchloom.spawner.unix_socket import usable_address
from torchloom.wire import schema_versions

LINE_LIMIT = 64 << 20
"""Longest message: a start request carries the whole environment of every worker."""


class SpawnerGone(ConnectionError):
    """The spawner closed the connection or is not there. Its workers may well be alive.

    Not in the tree of errors.py: the agent starts another spawner, and no user ever meets it.
    """


@dataclass(frozen=True)
class Started:
    """The outcome for one worker of a start request, in the order of the request."""

    pid: int | None
    """None when nothing was started; `error` says why."""
    start_ticks: int | None
    box: str | None
    """The black box in use: the requested one, the fallback, or None if neither could be made."""
    already: bool
    """The box existed: this worker was started before and `pid` is the recorded one."""
    error: str | None
    notes: tuple[str, ...] = ()
    """What had to be done differently, e.g. no room for a box; a sentence each."""


@dataclass(frozen=True)
class StoreKeeper:
    """A process that hosts one generation's c10d store."""

    pid: int
    start_ticks: int
    host: str
    port: int
    already: bool


@dataclass(frozen=True)
class ChildExit:
    """A child of the spawner has ended. Exactly one of `code` and `signal` is set."""

    pid: int
    start_ticks: int
    code: int | None
    signal: int | None
    at_ns: int
    """CLOCK_REALTIME when the spawner learned of it."""
    kind: str
    """"worker" or "store"."""
    box: str | None
    job: str | None
    core_dumped: bool = False


def read_message(line: bytes) -> dict[str, Any] | ChildExit:
    """What a spawner says: an answer, or the exit of a child. Raises SpawnerGone for anything else: whoever
    is at the other end is no spawner of ours any more."""
    try:
        message = json.loads(line)
        if "exit" in message:
            ended = ChildExit(**_of(ChildExit, message["exit"]))
            _check_exit(ended)
            return ended
        if not isinstance(message, dict) or not isinstance(message["id"], int):
            raise ValueError("neither an answer nor an exit")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SpawnerGone("the spawner sent something that is no message") from error
    return message


def _of(record: type, said: Mapping[str, Any]) -> dict[str, Any]:
    """What this version knows of an answer. A spawner may be newer than the agent (the package was replaced
    while the agent ran) and say more. Raises TypeError for what is no record."""
    if not isinstance(said, Mapping):
        raise TypeError("no record")
    known = {one.name for one in fields(record)}
    return {name: value for name, value in said.items() if name in known}


def _check_exit(ended: ChildExit) -> None:
    numbers = (ended.pid, ended.start_ticks, ended.at_ns)
    if not all(isinstance(number, int) and 0 <= number < 2**63 for number in numbers):
        raise ValueError("an exit without a process")
    optional = (ended.code, ended.signal)
    if not all(number is None or (isinstance(number, int) and 0 <= number < 2**31) for number in optional):
        raise ValueError("an exit without a status")
    if not all(text is None or isinstance(text, str) for text in (ended.kind, ended.box, ended.job)):
        raise ValueError("an exit without a process")


def _request(number: int, do: str, fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"id": number, "do": do, "schema": schema_versions.SPAWNER, **fields}).encode() + b"\n"


def _result(reply: Mapping[str, Any]) -> Any:
    if "error" in reply:
        raise SpawnFailed(str(reply["error"]))
    if "result" not in reply:
        raise SpawnFailed("the spawner answered neither with a result nor with an error")
    return reply["result"]


def read_started(result: Any) -> list[Started]:
    """The answer to a start request. Raises SpawnFailed for one that no spawner of ours gives."""
    try:
        found = [
            Started(**_of(Started, {**one, "notes": tuple(map(str, one.get("notes", ())))})) for one in result
        ]
    except (TypeError, AttributeError) as error:
        raise SpawnFailed("the spawner did not say what it has started") from error
    for one in found:
        if not (_is_process(one.pid) and (one.start_ticks is None or isinstance(one.start_ticks, int))):
            raise SpawnFailed("the spawner named no process")
        if not all(text is None or isinstance(text, str) for text in (one.box, one.error)):
            raise SpawnFailed("the spawner did not say what it has started")
    return found


def read_keeper(result: Any) -> StoreKeeper:
    """The answer to a store request. Raises SpawnFailed for one that no spawner of ours gives."""
    try:
        keeper = StoreKeeper(**_of(StoreKeeper, result))
    except TypeError as error:
        raise SpawnFailed("the spawner did not say where the store is") from error
    numbers = (keeper.pid, keeper.start_ticks, keeper.port)
    if not all(isinstance(n, int) for n in numbers) or not isinstance(keeper.host, str):
        raise SpawnFailed("the spawner did not say where the store is")
    if not (_is_process(keeper.pid) and 0 < keeper.port < 65536):
        raise SpawnFailed("the spawner named no process")
    return keeper


def _is_process(pid: int | None) -> bool:
    """Whether this can be a worker's pid: what is ended by it must never be everybody (-1, 0) or init."""
    return pid is None or (isinstance(pid, int) and not isinstance(pid, bool) and 1 < pid < 2**31)


def _store_fields(
    job: str, generation: int, host: str, port: int, env: Mapping[str, str] | None
) -> dict[str, Any]:
    return {
        "job": job,
        "generation": generation,
        "host": host,
        "port": port,
        "env": None if env is None else dict(env),
    }


class SpawnerClient:
    """Blocking client. `connect` replaces the previous client."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = b""
        self._numbers = itertools.count(1)
        self.exits: collections.deque[ChildExit] = collections.deque()
        """Exits that arrived and were not taken yet, oldest first."""

    @classmethod
    def connect(cls, path: Path | str, timeout_s: float = 10.0) -> Self:
        """Connect to a spawner that listens, or is about to, within `timeout_s`."""
        give_up = time.monotonic() + timeout_s
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                with usable_address(Path(path)) as address:
                    connection.connect(address)
                return cls(connection)
            except (FileNotFoundError, ConnectionRefusedError) as error:
                connection.close()
                if time.monotonic() >= give_up:
                    raise SpawnerGone(f"no spawner answers at {path}") from error
                time.sleep(0.01)

    def start(self, workers: Sequence[Mapping[str, Any]], timeout_s: float = 120.0) -> list[Started]:
        """Start workers; a spawner that is still warming does it when it is warm. Safe to repeat."""
        return read_started(self.call("start", timeout_s, workers=[dict(w) for w in workers]))

    def store(
        self,
        job: str,
        generation: int,
        host: str = "127.0.0.1",
        port: int = 0,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
    ) -> StoreKeeper:
        """A fresh c10d store for a generation; it listens when this returns. Safe to repeat."""
        return read_keeper(self.call("store", timeout_s, **_store_fields(job, generation, host, port, env)))

    def reserve(self, workers: int, host: str | None = None, timeout_s: float = 120.0) -> dict[str, Any]:
        """Have so many workers, and a store on `host`, forked ahead of need; what there is then."""
        return dict(self.call("reserve", timeout_s, workers=workers, host=host))

    def state(self, timeout_s: float = 10.0) -> dict[str, Any]:
        """What the spawner has and is doing; answered also while it warms."""
        return dict(self.call("state", timeout_s))

    def forget(self, pids: Iterable[int], timeout_s: float = 120.0) -> None:
        """Acknowledge exits: the spawner need not repeat them."""
        self.call("forget", timeout_s, pids=list(pids))

    def quit(self, at_once: bool = False, timeout_s: float = 120.0) -> None:
        """End the spawner when its last worker has ended, or at once (workers continue as orphans)."""
        self.call("quit", timeout_s, at_once=at_once)

    def wait_exit(self, timeout_s: float) -> ChildExit | None:
        """The next exit, or None when none came in time."""
        give_up = time.monotonic() + timeout_s
        while not self.exits:
            message = self._read(give_up)
            if message is None:
                return None
        return self.exits.popleft()

    def call(self, do: str, timeout_s: float, **fields: Any) -> Any:
        """Send one request and wait for its answer; exits that come meanwhile are kept in `exits`."""
        number = next(self._numbers)
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(_request(number, do, fields))
        except TimeoutError as error:
            raise TimedOut(f"the spawner took no {do!r} request within {timeout_s:g} s") from error
        except OSError as error:
            raise SpawnerGone("the connection to the spawner broke") from error
        give_up = time.monotonic() + timeout_s
        while True:
            message = self._read(give_up)
            if message is None:
                raise TimedOut(f"the spawner did not answer {do!r} within {timeout_s:g} s")
            if message.get("id") == number:
                return _result(message)

    def _read(self, give_up: float) -> dict[str, Any] | None:
        while b"\n" not in self._buffer:
            left = give_up - time.monotonic()
            if left <= 0:
                return None
            self._socket.settimeout(left)
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                return None
            except OSError as error:
                raise SpawnerGone("the connection to the spawner broke") from error
            if not data:
                raise SpawnerGone("the spawner closed the connection")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message = read_message(line)
        if isinstance(message, ChildExit):
            self.exits.append(message)
            return {}
        return message

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncSpawnerClient:
    """The same for asyncio. `on_exit` is called in the loop for every exit, `gone` is set at the end."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_exit: Callable[[ChildExit], None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._on_exit = on_exit
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.gone = asyncio.Event()
        """Set when the connection has ended, for whatever reason."""
        self._task = asyncio.create_task(self._receive(), name="spawner-client")

    @classmethod
    async def connect(
        cls, path: Path | str, on_exit: Callable[[ChildExit], None], timeout_s: float = 10.0
    ) -> Self:
        """Connect to a spawner that listens, or is about to, within `timeout_s`."""
        give_up = time.monotonic() + timeout_s
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.setblocking(False)
            try:
                # A unix connect does not wait for the other side: it succeeds or fails at once.
                with usable_address(Path(path)) as address:
                    connection.connect(address)
                reader, writer = await asyncio.open_unix_connection(sock=connection, limit=LINE_LIMIT)
                return cls(reader, writer, on_exit)
            except (FileNotFoundError, ConnectionRefusedError, BlockingIOError) as error:
                connection.close()
                if time.monotonic() >= give_up:
                    raise SpawnerGone(f"no spawner answers at {os.fspath(path)}") from error
                await asyncio.sleep(0.01)

    async def start(self, workers: Sequence[Mapping[str, Any]], timeout_s: float = 120.0) -> list[Started]:
        """Start workers; a spawner that is still warming does it when it is warm. Safe to repeat."""
        return read_started(await self.call("start", timeout_s, workers=[dict(w) for w in workers]))

    async def store(
        self,
        job: str,
        generation: int,
        host: str = "127.0.0.1",
        port: int = 0,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
    ) -> StoreKeeper:
        """A fresh c10d store for a generation; it listens when this returns. Safe to repeat."""
        fields = _store_fields(job, generation, host, port, env)
        return read_keeper(await self.call("store", timeout_s, **fields))

    async def reserve(self, workers: int, host: str | None = None) -> None:
        await self.call("reserve", 120.0, workers=workers, host=host)

    async def state(self, timeout_s: float = 10.0, when_warm: bool = False) -> dict[str, Any]:
        """What the spawner has and is doing; answered also while it warms, unless `when_warm` is set."""
        state: dict[str, Any] = await self.call("state", timeout_s, **({"when": "warm"} if when_warm else {}))
        return state

    async def forget(self, pids: Iterable[int], timeout_s: float = 120.0) -> None:
        """Acknowledge exits: the spawner need not repeat them."""
        await self.call("forget", timeout_s, pids=list(pids))

    async def quit(self, at_once: bool = False, timeout_s: float = 120.0) -> None:
        """End the spawner when its last worker has ended, or at once (workers continue as orphans)."""
        await self.call("quit", timeout_s, at_once=at_once)

    async def call(self, do: str, timeout_s: float, **fields: Any) -> Any:
        """Send one request and wait for its answer."""
        if self.gone.is_set():
            raise SpawnerGone("the connection to the spawner is closed")
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._writer.write(_request(number, do, fields))
            async with asyncio.timeout(timeout_s):
                return _result(await answer)
        except TimeoutError as error:
            raise TimedOut(f"the spawner did not answer {do!r} within {timeout_s:g} s") from error
        finally:
            self._waiting.pop(number, None)

    async def _receive(self) -> None:
        try:
            while line := await self._reader.readline():
                message = read_message(line)
                if isinstance(message, ChildExit):
                    self._on_exit(message)
                elif (answer := self._waiting.get(message["id"])) is not None and not answer.done():
                    answer.set_result(message)
        except (OSError, ValueError):  # ValueError: a line that is too long
            pass  # the same as a closed connection: waiting callers get the error below
        finally:
            self.gone.set()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(SpawnerGone("the spawner closed the connection"))
            self._writer.close()

    async def close(self) -> None:
        """Close the connection; the spawner and its workers keep running."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
