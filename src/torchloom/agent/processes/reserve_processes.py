"""Has spawners fork the next workers of a job, and its next store, while the job trains: a restart then waits
for no fork.

Asks once for every generation, some time after all its ranks on this host have stepped: a fork copies the
page tables of a large process, which must delay neither a start nor a recovery. Reserves belong to no job
until they are used (spawner/reserves.py). Decides nothing about jobs.
"""

from __future__ import annotations

import asyncio
import os
import time

from torchloom.agent.host import Host, LocalWorker

OFF = "LOOM_RESERVES"
"""Variable of the agent: `0` forks nothing ahead of need."""
LOOK_EVERY_S = 0.5
AFTER_S = 1.5
"""So long all ranks must have been seen at work."""
UNUSED_S = 10.0
"""So long reserves that no job would use are kept."""
MOST_WORKERS = 32


class ReserveProcesses:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._asked: dict[str, object] = {}
        """By spawner: which workers it was last asked for the reserves of."""
        self._at_work_s: dict[object, float] = {}
        """Since when these workers are known to be at work."""
        self._unused_s: dict[str, float] = {}
        """Since when no job would use the reserves of this spawner."""

    async def run(self) -> None:
        """Until cancelled."""
        while os.environ.get(OFF) != "0":
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look(time.monotonic())
        await asyncio.Event().wait()

    async def look(self, now_s: float) -> None:
        """Ask for what is missing, and let go of what no job would use."""
        wanted = self._wanted(now_s)
        for key in list(self._asked):
            since_s = self._unused_s.pop(key, now_s)
            if key in wanted or self._needed(key):
                continue
            if now_s - since_s < UNUSED_S:  # between two generations no worker is there
                self._unused_s[key] = since_s
                continue
            del self._asked[key]
            await self._host.spawners.reserve(key, 0, None)
        for key, (who, workers, host) in wanted.items():
            if self._asked.get(key) != who:
                self._asked[key] = who
                await self._host.spawners.reserve(key, workers, host)

    def _needed(self, key: str) -> bool:
        """Whether the next start of a job may come from this spawner."""
        return any(self._next(worker) == key for worker in self._host.workers.values())

    def _wanted(self, now_s: float) -> dict[str, tuple[object, int, str | None]]:
        """By spawner: for whom, how many workers, and where a store. Of several jobs the largest counts: they
        do not fail together."""
        jobs: dict[tuple[str, int], list[LocalWorker]] = {}
        for worker in self._host.workers.values():
            jobs.setdefault((worker.ref.job, worker.ref.generation), []).append(worker)
        since, self._at_work_s = self._at_work_s, {}
        found: dict[str, tuple[object, int, str | None]] = {}
        for job, mine in jobs.items():
            if any(worker.ending or not worker.first_step_told for worker in mine):
                continue
            self._at_work_s[job] = since.get(job, now_s)
            key, many = self._next(mine[0]), min(MOST_WORKERS, len(mine))
            if now_s - self._at_work_s[job] >= AFTER_S and many > found.get(key, ("", 0, None))[1]:
                found[key] = (job, many, self._store_of(*job))
        return found

    def _next(self, worker: LocalWorker) -> str:
        chosen = self._host.learned.next.get(worker.ref.job, "")
        return chosen if self._host.spawners.connected(chosen) else worker.spawner

    def _store_of(self, job: str, generation: int) -> str | None:
        """The address at which this host keeps the store of a job; None: another host does."""
        for store in self._host.stores.values():
            if (store.ref.job, store.ref.generation) == (job, generation):
                return store.address.host
        return None
