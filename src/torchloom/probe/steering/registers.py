"""The registers in which ranks decide: the store of their generation, asked so that it can be given up on.

torch's `compare_set` has no timeout: with the store's process stopped it blocks for as long as that is. So
every request runs on a thread of its own that lives only while the answer is awaited; one that never comes
back is abandoned, and its late answer is ignored. The connection is ours alone, because a request that
hangs holds it. A register is written once, so what was read is not asked for again while it is among the
newest; decisions of a run of weeks are not kept forever.

Whoever reaches the store's port can write into it. A value that no rank of this generation wrote counts as
none (wire/store_values.py): a look does not see it, and a write replaces it."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from torchloom.wire.store_values import StoreValues

MOST_STUCK = 4
"""Requests left behind before new ones fail at once."""
CONNECT_S = 10.0
MOST_REPLACED = 1000
"""Foreign values that one request replaces before it gives up for now: somebody writes faster than we do."""
MOST_KNOWN = 16_384
"""Values that are kept: more than one operation asks for, also with as many ranks as a job may have."""


class StoreSilent(Exception):
    """No answer. The request may or may not have been carried out; a retry is harmless."""


class Registers:
    """One worker's way to the store at MASTER_ADDR and MASTER_PORT."""

    def __init__(self, environment: Mapping[str, str], values: StoreValues | None = None) -> None:
        self._environment = environment
        self._values = values if values is not None else StoreValues()
        self._client: Any = None
        self._known: dict[str, str] = {}
        self._stuck = 0
        self._lock = threading.Lock()

    @property
    def is_stuck(self) -> bool:
        """Whether a request is still out that was given up on: another would most likely follow it."""
        return self._stuck > 0

    def compare_set(self, key: str, value: str, until_ns: int) -> str:
        """The first writer's value. Raises StoreSilent."""

        packed = self._values.pack(key, value)

        def ask(client: Any) -> str:
            found = client.compare_set(key, "", packed)
            for _ in range(MOST_REPLACED):
                text = self._values.unpack(key, found)
                if text is not None:
                    return text
                found = client.compare_set(key, found, packed)
            raise StoreSilent("another process keeps writing into the job's store")

        held = str(self._ask(ask, until_ns))
        self._keep({key: held})
        return held

    def look(self, keys: Iterable[str], until_ns: int) -> dict[str, str]:
        """The values of those keys that have one. Raises StoreSilent."""
        wanted = tuple(keys)
        found = {key: self._known[key] for key in wanted if key in self._known}
        missing = [key for key in wanted if key not in found]

        def ask(client: Any) -> dict[str, str]:
            read = {key: self._values.unpack(key, client.get(key)) for key in missing if client.check([key])}
            return {key: text for key, text in read.items() if text is not None}

        if missing:
            new: dict[str, str] = self._ask(ask, until_ns)
            self._keep(new)
            found |= new
        return found

    def _keep(self, new: Mapping[str, str]) -> None:
        self._known |= new
        for oldest in list(islice(self._known, max(0, len(self._known) - MOST_KNOWN))):
            del self._known[oldest]

    def _ask(self, ask: Callable[[Any], Any], until_ns: int) -> Any:
        if self._stuck >= MOST_STUCK:
            _sleep_until(until_ns)
            raise StoreSilent("earlier requests are still without an answer")
        client, self._client = self._client, None  # no other thread may use it meanwhile
        answer: list[tuple[Any, Any, Exception | None]] = []
        given_up = False
        awaited = _thread.allocate_lock()
        awaited.acquire()

        def run() -> None:
            connected = client
            try:
                if connected is None:
                    connected = self._connect()
                answer.append((connected, ask(connected), None))
            except Exception as error:  # noqa: BLE001 – torch's errors have no common root
                answer.append((None, None, error))
            with self._lock:
                awaited.release()
                if given_up:
                    self._stuck -= 1

        _thread.start_new_thread(run, ())
        came = awaited.acquire(timeout=max(0.001, (until_ns - time.monotonic_ns()) / 1e9))
        if not came:
            with self._lock:
                given_up = not answer
                self._stuck += given_up
            if given_up:
                raise StoreSilent("no answer in time")
        self._client, value, error = answer[0]
        if error is not None:
            raise StoreSilent(str(error).partition("\n")[0]) from error
        return value

    def _connect(self) -> Any:
        from datetime import timedelta

        from torch.distributed import TCPStore

        host, port = self._environment.get("MASTER_ADDR"), self._environment.get("MASTER_PORT", "")
        if not host or not port.isdecimal():
            raise StoreSilent("MASTER_ADDR and MASTER_PORT name no store")
        return TCPStore(
            host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=CONNECT_S)
        )


def _sleep_until(until_ns: int) -> None:
    time.sleep(max(0.0, min(0.05, (until_ns - time.monotonic_ns()) / 1e9)))
