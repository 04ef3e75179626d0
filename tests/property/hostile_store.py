"""A simulated store that refuses, loses answers, is late, doubles and tears, one request at a time.

Owns the fates of requests and the turns of the programs that make them: each program runs on a thread of its
own but only when it is given a turn, and then up to its next request, so a history is a list of turns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from torchloom.checkpoint.store.storage import Bytes, Stored
from torchloom.errors import CheckpointMissing, StorageFailed

FATES = ("ok", "refused", "answer lost", "late", "twice", "torn", "killed")


class Killed(BaseException):
    """The program ended here; nothing of it is cleaned up."""


class Server:
    """The objects, and requests that are still on their way."""

    where = "nowhere"
    reads_at_once = 4

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.on_their_way: list[Callable[[], object]] = []

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        self.objects[key] = b"".join(bytes(chunk) for chunk in chunks)

    def put_new(self, key: str, data: bytes) -> bool:
        return self.objects.setdefault(key, data) is data

    def get(self, key: str) -> bytes:
        if key not in self.objects:
            raise CheckpointMissing(f"{key} does not exist")
        return self.objects[key]

    def read_scattered(self, key: str, start: int, buffers: Sequence[memoryview]) -> int:
        data, at = self.get(key), start
        for buffer in buffers:
            piece = data[at : at + len(buffer)]
            buffer[: len(piece)] = piece
            at += len(piece)
        return at - start

    def list(self, prefix: str) -> list[Stored]:
        return [Stored(k, len(v), 0.0) for k, v in sorted(self.objects.items()) if k.startswith(prefix)]

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def size(self, key: str) -> int | None:
        return len(self.objects[key]) if key in self.objects else None

    def arrive(self, number: int) -> None:
        """Something that was on its way arrives, in any order."""
        if self.on_their_way:
            self.on_their_way.pop(number % len(self.on_their_way))()


class Program:
    """A program that talks to the server through a network that its turns decide."""

    where = "nowhere"
    reads_at_once = 4

    def __init__(self, server: Server, body: Callable[[Program], None]) -> None:
        self._server = server
        self._turn, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._fate = "ok"
        self._failure: BaseException | None = None
        self.alive = True
        self._thread = threading.Thread(target=self._run, args=(body,), daemon=True)
        self._thread.start()
        self._stopped.acquire()

    def take_turn(self, fate: str) -> None:
        """Let it make its next request with this fate, and go on to the one after."""
        if self.alive:
            self._fate = fate
            self._turn.release()
            self._stopped.acquire()
            if self._failure is not None:
                raise self._failure

    def _run(self, body: Callable[[Program], None]) -> None:
        try:
            body(self)
        except Killed:
            pass
        except BaseException as failure:  # noqa: BLE001 - carried over to the test's thread
            self._failure = failure
        self.alive = False
        self._stopped.release()

    def _wait(self) -> str:
        self._stopped.release()
        self._turn.acquire()
        if self._fate == "killed":
            raise Killed
        return self._fate

    def _change(self, whole: Callable[[], object], torn: Callable[[], object]) -> object:
        """A request that changes something; how much of it happens, when, and what is answered."""
        fate = self._wait()
        if fate == "ok":
            return whole()
        if fate == "twice":
            self._server.on_their_way.append(whole)
            return whole()
        if fate == "late":
            self._server.on_their_way.append(whole)
        elif fate == "torn":
            torn()
        elif fate == "answer lost":
            whole()
        raise StorageFailed(f"the request was {fate}")

    def _ask(self) -> None:
        if self._wait() not in ("ok", "twice"):
            raise StorageFailed("no answer came")

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        data = b"".join(bytes(chunk) for chunk in chunks)
        self._change(
            lambda: self._server.put(key, [data]), lambda: self._server.put(key, [data[: len(data) // 2]])
        )

    def put_new(self, key: str, data: bytes) -> bool:
        half = data[: len(data) // 2]
        return bool(
            self._change(lambda: self._server.put_new(key, data), lambda: self._server.put_new(key, half))
        )

    def get(self, key: str) -> bytes:
        self._ask()
        return self._server.get(key)

    def read_scattered(self, key: str, start: int, buffers: Sequence[memoryview]) -> int:
        self._ask()
        return self._server.read_scattered(key, start, buffers)

    def list(self, prefix: str) -> list[Stored]:
        self._ask()
        return self._server.list(prefix)

    def delete(self, key: str) -> None:
        self._change(lambda: self._server.delete(key), lambda: None)

    def size(self, key: str) -> int | None:
        self._ask()
        return self._server.size(key)
