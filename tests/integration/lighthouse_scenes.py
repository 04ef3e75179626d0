"""For tests of lighthouses: an agent's side, their processes, and replicas with torchft's own client."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
from torchft._torchft import LighthouseClient

from torchloom.agent.lighthouse.keeper import Lighthouses
from torchloom.agent.tasks import Tasks
from torchloom.home import Home
from torchloom.model.quorum import ReplicaSeat

HANG_S = 150.0
LONG = timedelta(seconds=HANG_S)


@asynccontextmanager
async def lighthouses(home: Home) -> AsyncIterator[Lighthouses]:
    """As one agent has them; at its end only the agent's side is gone."""
    tasks = Tasks()
    made = Lighthouses(home, tasks)
    try:
        await made.adopt()
        yield made
    finally:
        await tasks.cancel()


def run(scene: Callable[[Home], Awaitable[None]]) -> None:
    """With a home of its own; no process of it may be left."""
    with tempfile.TemporaryDirectory(prefix="loom-lh-") as root:
        home = Home(Path(root) / "home")
        home.prepare()
        try:
            asyncio.run(_within(scene(home)))
            deadline = time.monotonic() + HANG_S
            while processes(home):
                assert time.monotonic() < deadline, "the lighthouse ends with its last door"
                time.sleep(0.02)
        finally:
            for process in processes(home):
                process.kill()
            shutil.rmtree(home.sockets, ignore_errors=True)


async def _within(work: Awaitable[None]) -> None:
    async with asyncio.timeout(2 * HANG_S):
        await work


def processes(home: Home) -> list[psutil.Process]:
    mine = str(home.root)
    found = psutil.process_iter(["cmdline", "status"])
    return [
        p
        for p in found
        if p.info["status"] != psutil.STATUS_ZOMBIE and any(mine in part for part in p.info["cmdline"] or ())
    ]


def seat(index: int, size: int = 2) -> ReplicaSeat:
    return ReplicaSeat("ft", index, size)


class Replica:
    """Heartbeats and asks like torchft's manager, with torchft's own client."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self.step = 0
        """As torchft counts: one more for every quorum that it got."""
        self._client = LighthouseClient(f"http://{address}", connect_timeout=LONG)
        self._over = threading.Event()
        self._beats = threading.Thread(target=self._beat, daemon=True)
        self._beats.start()

    def _beat(self) -> None:
        while not self._over.wait(0.1):
            try:
                self._client.heartbeat(self.name, timeout=LONG)
            except Exception:  # noqa: BLE001  the lighthouse is being started again
                continue

    async def quorum(self) -> tuple[int, list[str]]:
        found = await self._ask()
        return int(found.quorum_id), [one.replica_id for one in found.participants]

    async def steps(self) -> dict[str, int]:
        """The members of the next quorum, and how many steps they have made."""
        return {one.replica_id: one.step for one in (await self._ask()).participants}

    async def _ask(self) -> Any:
        found: Any = await asyncio.to_thread(self._client.quorum, self.name, LONG, step=self.step)
        self.step += 1
        return found

    def die(self) -> None:
        self._over.set()
        self._beats.join(HANG_S)


async def again(replica: Replica) -> tuple[int, list[str]]:
    """Asks as torchft's manager does while a lighthouse is restarted."""
    while True:
        try:
            return await replica.quorum()
        except Exception:  # noqa: BLE001  the lighthouse is not up yet
            await asyncio.sleep(0.1)
