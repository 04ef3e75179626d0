"""Carries out StartRendezvous and StopRendezvous: a generation's c10d store, kept by a process of a spawner.

How the store works is the spawner's affair; here it is only started, noted, watched and ended.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping

from torchloom.agent.host import Host, Store
from torchloom.agent.journal import ProcessNote
from torchloom.agent.processes.exits import ExitWatch
from torchloom.agent.processes.process import Process, boot_id
from torchloom.agent.processes.recipe import recipe
from torchloom.agent.processes.worker_environment import without_secrets
from torchloom.errors import SpawnFailed
from torchloom.home import private_directory
from torchloom.model.effects import StartRendezvous, StopRendezvous
from torchloom.model.events import EffectDone, RendezvousStarted
from torchloom.model.ids import check_token
from torchloom.model.messages import LIGHTHOUSE_SECRET
from torchloom.model.node import RendezvousAddress, RendezvousRef


class Stores:
    """Starts and stops store keepers, one at a time per generation."""

    def __init__(self, host: Host, watch: ExitWatch) -> None:
        self._host = host
        self._watch = watch
        self._locks: dict[RendezvousRef, asyncio.Lock] = {}

    async def start(self, effect: StartRendezvous, env: Mapping[str, str]) -> RendezvousStarted:
        """A listening store; the one that runs already if this was asked before."""
        check_token(effect.store.job, "job name")
        async with self._locks.setdefault(effect.store, asyncio.Lock()):
            store = self._host.stores.get(effect.store)
            if store is None:
                door = ("", "")
                if effect.replica is not None:
                    site, key = effect.lighthouse, env.get(LIGHTHOUSE_SECRET, "")
                    door = await self._host.lighthouses.open(effect.replica, effect.store, site, key)
                    self._host.answer_agents()
                store = await self._start(effect, env, *door)
                self._watch.add_store(store)
        return RendezvousStarted(
            node=self._host.node, effect=effect.id, store=effect.store, address=store.address
        )

    async def _start(
        self, effect: StartRendezvous, env: Mapping[str, str], lighthouse: str, news: str
    ) -> Store:
        host, ref = self._host, effect.store
        private_directory(host.home.sockets)
        wanted = recipe(effect.interpreter, without_secrets(env), effect.preload, effect.spawn)
        keeper = await host.spawners.ask(
            wanted, lambda spawner: spawner.store(ref.job, ref.generation, effect.host)
        )
        process = Process.open(keeper.pid, keeper.start_ticks)
        if process is None:
            raise SpawnFailed(f"the store of {ref.job} ended as soon as it had started")
        note = ProcessNote(
            kind="store",
            job=ref.job,
            generation=ref.generation,
            boot_id=f"{boot_id():x}",
            pid=keeper.pid,
            start_ticks=keeper.start_ticks,
            spawner=wanted.key,
            host=keeper.host,
            port=keeper.port,
            lighthouse=lighthouse,
            news=news,
        )
        host.journal.keep(note)
        address = RendezvousAddress(keeper.host, keeper.port, lighthouse, news)
        return Store(ref=ref, address=address, process=process, note=note)

    async def stop(self, effect: StopRendezvous) -> EffectDone:
        """End the store if it exists; wait for a start in progress first."""
        if effect.door_of:
            await self._host.lighthouses.close(effect.store, effect.door_of)
            return EffectDone(node=self._host.node, effect=effect.id)
        lock = self._locks.setdefault(effect.store, asyncio.Lock())
        async with lock:
            store = self._host.stores.get(effect.store)
            if store is not None:
                store.stopping = True
                store.process.signal_group(signal.SIGKILL)
                await store.gone.wait()
            await self._host.lighthouses.close(effect.store)
        self._locks.pop(effect.store, None)
        return EffectDone(node=self._host.node, effect=effect.id)
