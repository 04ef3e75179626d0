"""The spawners this agent talks to: find, start, keep, replace them.

One per key (interpreter, environment read at start, preload, mode). A spawner outlives the agent; one that
dies is replaced in the background if it is still needed, and its workers are not touched. Starting workers
through it is `start`'s affair.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torchloom.agent.processes import spawner_files
from torchloom.agent.processes.recipe import Recipe
from torchloom.errors import LoomError, SpawnFailed, TimedOut
from torchloom.home import Home
from torchloom.spawner.client import AsyncSpawnerClient, ChildExit, SpawnerGone
from torchloom.spawner.launch import socket_path, start_spawner

log = logging.getLogger(__name__)

T = TypeVar("T")

_ATTEMPTS = 5
ANSWER_WITHIN_S = 20.0
"""A new spawner answers before it imports anything; only a host in trouble takes this long."""
_LOOK_EVERY_S = 0.01
_LEAVE_WITHIN_S = 5.0
_STILL_WANTED_EVERY_S = 0.1
_WARM_WITHIN_S = 10.0
"""After so long a spawner must at least answer that it is still warming."""
_SHORT_LIFE_S = 10.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


@dataclass(eq=False)
class _Spawner:
    key: str
    client: AsyncSpawnerClient
    since: float
    warm: bool = False
    version: str = ""
    """Of its torchloom; empty: it is of an earlier one, which does not say."""


class Spawners:
    """The pool. `needed(key)` says whether a dead spawner must be replaced before anybody asks for it."""

    def __init__(self, home: Home, needed: Callable[[str], bool]) -> None:
        self._home = home
        self._needed = needed
        self._pool: dict[str, _Spawner] = {}
        self._recipes: dict[str, Recipe] = {}
        self._wanted_warm: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._pauses: dict[str, float] = {}
        self._watchers: set[asyncio.Task[None]] = set()
        self._closing = False
        self.exits: dict[tuple[int, int], ChildExit] = {}
        """Exits that spawners reported of their children, by pid and start time, until used."""

    # -- finding and starting -------------------------------------------------------------------
    async def reconnect(self) -> None:
        """Find the spawners of an earlier agent. Exits they kept are in `exits` when this returns."""
        for path in sorted(self._home.sockets.glob("*.sock")):
            try:
                client = await self._connect(path, timeout_s=0.0)
                state = await client.state(timeout_s=2.0)
            except SpawnerGone:
                spawner_files.sweep(path)
                continue
            except (LoomError, OSError) as error:
                log.warning("the spawner at %s does not answer: %s", path, error)
                continue
            self._add(str(state["key"]), client)
            self._pool[str(state["key"])].version = str(state.get("version", ""))
            log.info("spawner %s is still there (%s)", state["key"], state["state"])

    async def get(self, wanted: Recipe) -> AsyncSpawnerClient:
        """A connected spawner for this recipe, started if there is none; it may still be warming."""
        key = wanted.key
        self._recipes[key] = wanted
        async with self._locks.setdefault(key, asyncio.Lock()):
            known = self._pool.get(key)
            if known is not None and not known.client.gone.is_set():
                return known.client
            return await self._start(key, wanted)

    async def ask(
        self,
        wanted: Recipe,
        request: Callable[[AsyncSpawnerClient], Awaitable[T]],
        still_wanted: Callable[[], bool] = lambda: True,
        before_retry: Callable[[], Awaitable[None]] | None = None,
    ) -> T:
        """The answer of a spawner that is ready to fork. Requests are safe to repeat, so one that dies is
        replaced.

        Raises SpawnFailed when nobody wants it any more, or when one after the other dies.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await request(await self._warm(wanted, still_wanted))
            except SpawnerGone:
                log.warning("the spawner died in the middle of a request (%d of %d)", attempt, _ATTEMPTS)
            if before_retry is not None:
                await before_retry()
            await asyncio.sleep(_LOOK_EVERY_S * attempt**2)
        raise SpawnFailed(f"{_ATTEMPTS} spawners died one after the other: {self._last_words(wanted.key)}")

    async def _warm(self, wanted: Recipe, still_wanted: Callable[[], bool]) -> AsyncSpawnerClient:
        client = await self.get(wanted)
        spawner = self._pool.get(wanted.key)
        while spawner is None or not spawner.warm:
            if not still_wanted():
                raise SpawnFailed("it was stopped before it had started")
            state = await self._when_warm(client, still_wanted)
            if state is not None:
                if spawner is not None:
                    spawner.warm, spawner.version = True, str(state.get("version", ""))
                break
            await asyncio.sleep(_LOOK_EVERY_S)  # a spawner of an earlier version answers at once
        return client

    def version_of(self, key: str) -> str:
        """Of the torchloom that this spawner's workers run."""
        spawner = self._pool.get(key)
        return spawner.version if spawner is not None else ""

    @staticmethod
    async def _when_warm(
        client: AsyncSpawnerClient, still_wanted: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """The state that a spawner reports once it is warm; None if it is not, or nobody waits any more."""
        asked = asyncio.create_task(client.state(_WARM_WITHIN_S, when_warm=True), name="until warm")
        try:
            while not asked.done() and still_wanted():
                await asyncio.wait({asked}, timeout=_STILL_WANTED_EVERY_S)
            state = await asked if asked.done() else None
        except TimedOut:
            state = await client.state()  # slow, or is it stuck?
        finally:
            asked.cancel()
        return state if state is not None and state["state"] != "warming" else None

    async def warmed(self, wanted: Recipe) -> dict[str, Any]:
        """The state of this spawner once it has imported everything, started if there is none."""
        client = await self._warm(wanted, lambda: not self._closing)
        return await client.state()

    async def quit(self, key: str) -> None:
        """End a spawner once its last worker has ended."""
        spawner = self._pool.get(key)
        self._recipes.pop(key, None)
        if spawner is not None:
            with contextlib.suppress(LoomError, SpawnerGone, OSError):
                await spawner.client.quit(at_once=False, timeout_s=_LEAVE_WITHIN_S)

    async def reserve(self, key: str, workers: int, host: str | None) -> None:
        """Have a spawner fork so many workers, and a store on `host`, ahead of need. One that cannot, because
        it is gone or of an earlier version, forks them when they are needed."""
        spawner = self._pool.get(key)
        if spawner is not None:
            with contextlib.suppress(LoomError, SpawnerGone, OSError):
                await spawner.client.reserve(workers, host)

    async def prewarm(self, wanted: Recipe) -> None:
        """Have one ready, and have it replaced when it dies, before any job asks for it."""
        self._wanted_warm.add(wanted.key)
        try:
            await self.get(wanted)
        except (LoomError, OSError) as error:
            log.warning("no spawner could be made ready: %s", error)

    async def _start(self, key: str, wanted: Recipe) -> AsyncSpawnerClient:
        path = socket_path(self._home.sockets, key)
        living = await self._living(path)
        if living is not None:
            return self._add(key, living)
        try:
            process = start_spawner(
                self._home.sockets,
                key,
                wanted.interpreter,
                wanted.env,
                preload=wanted.preload,
                cold=wanted.cold,
                learned=wanted.learned,
            )
        except OSError as error:
            spawner_files.sweep(path)
            raise SpawnFailed(f"{wanted.interpreter} cannot be run ({error.strerror})") from error
        self._reap(key)
        self._processes[key] = process
        try:
            client = await self._first_contact(path, process, key)
        except (SpawnFailed, SpawnerGone):
            self._reap(key)
            spawner_files.sweep(path)
            raise
        return self._add(key, client)

    async def _living(self, path: Path) -> AsyncSpawnerClient | None:
        """The spawner that serves this socket already, or None once it is certain that there is none.

        The lock of one that was killed is still held for a moment by a child it had just forked.
        """
        give_up = time.monotonic() + _LEAVE_WITHIN_S
        while True:
            with contextlib.suppress(SpawnerGone):
                return await self._connect(path, timeout_s=0.0)
            if spawner_files.is_free(path) or time.monotonic() > give_up:
                return None
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _first_contact(
        self, path: Path, process: subprocess.Popen[bytes], key: str
    ) -> AsyncSpawnerClient:
        give_up = time.monotonic() + ANSWER_WITHIN_S
        other = False
        while True:
            try:
                return await self._connect(path, timeout_s=0.0)
            except SpawnerGone:
                if (process.poll() or 0) < 0:
                    raise  # killed, which says nothing about the next one: as in the middle of a request
                if process.poll() is not None:
                    if not spawner_files.is_free(path):
                        other = True  # `loom run` has started the same one, and that is about to listen
                    elif other:
                        raise
                    else:
                        raise SpawnFailed(f"the spawner did not start: {self._last_words(key)}") from None
                if time.monotonic() > give_up:
                    raise SpawnFailed(f"the spawner does not answer at {path}") from None
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _connect(self, path: Path, timeout_s: float) -> AsyncSpawnerClient:
        return await AsyncSpawnerClient.connect(path, self._on_exit, timeout_s=timeout_s)

    def _on_exit(self, ended: ChildExit) -> None:
        self.exits[(ended.pid, ended.start_ticks)] = ended

    def _log_file(self, key: str) -> Path:
        return self._home.sockets / f"spawner-{key}.log"

    def _last_words(self, key: str) -> str:
        try:
            lines = self._log_file(key).read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1][:300] if lines else "it left no word"

    # -- keeping --------------------------------------------------------------------------------
    def _add(self, key: str, client: AsyncSpawnerClient) -> AsyncSpawnerClient:
        spawner = _Spawner(key, client, time.monotonic())
        watcher = asyncio.create_task(self._watch(spawner), name=f"spawner {key}")
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        self._pool[key] = spawner
        return client

    async def _watch(self, spawner: _Spawner) -> None:
        await spawner.client.gone.wait()
        key = spawner.key
        if self._pool.get(key) is spawner:
            del self._pool[key]
        self._reap(key)
        if self._closing:
            return
        log.warning("spawner %s is gone; its workers continue", key)
        lived_s = time.monotonic() - spawner.since
        pause_s = (
            0.0 if lived_s > _SHORT_LIFE_S else min(_LONGEST_PAUSE_S, self._pauses.get(key, _FIRST_PAUSE_S))
        )
        self._pauses[key] = max(_FIRST_PAUSE_S, pause_s * 2)
        await asyncio.sleep(pause_s)
        wanted = self._recipes.get(key)
        if wanted is None or not (key in self._wanted_warm or self._needed(key)):
            return
        try:
            await self.get(wanted)
        except (LoomError, OSError) as error:
            log.warning("spawner %s could not be replaced: %s", key, error)

    def _reap(self, key: str) -> None:
        process = self._processes.get(key)
        if process is not None and process.poll() is not None:
            del self._processes[key]

    def connected(self, key: str) -> bool:
        spawner = self._pool.get(key)
        return spawner is not None and not spawner.client.gone.is_set()

    async def forget(self, key: str, pid: int, ticks: int) -> None:
        """The exit is known to the world: the spawner need not repeat it."""
        self.exits.pop((pid, ticks), None)
        spawner = self._pool.get(key)
        if spawner is not None:
            with contextlib.suppress(LoomError, SpawnerGone):
                await spawner.client.forget([pid])

    # -- the end --------------------------------------------------------------------------------
    async def close(self, quit_unused: bool) -> None:
        """Let go of all; with `quit_unused` those without workers end, and nothing of them is left."""
        self._closing = True
        while watchers := set(self._watchers):
            for watcher in watchers:
                watcher.cancel()
            await asyncio.wait(watchers, timeout=0.05)
        for spawner in self._pool.values():
            if quit_unused and not self._needed(spawner.key):
                with contextlib.suppress(LoomError, OSError):
                    await spawner.client.quit(at_once=True, timeout_s=_LEAVE_WITHIN_S)  # also while it warms
                    async with asyncio.timeout(_LEAVE_WITHIN_S):
                        await spawner.client.gone.wait()
            await spawner.client.close()
        if quit_unused:
            await self._end_unused()

    async def _end_unused(self) -> None:
        for key, process in self._processes.items():
            if not self._needed(key):
                process.terminate()  # one that had not even been reached yet
        give_up = time.monotonic() + _LEAVE_WITHIN_S
        while time.monotonic() < give_up:
            for key in list(self._processes):
                self._reap(key)
            unused = [key for key in self._processes if not self._needed(key)]
            left = [path.with_suffix(".sock") for path in self._home.sockets.glob("spawner-*.log")]
            if not unused and all(
                spawner_files.sweep(path) or self._needed(spawner_files.key_of(path)) for path in left
            ):
                return
            await asyncio.sleep(_LOOK_EVERY_S)
