"""For tests of lighthouses whose replicas are on several nodes: an agent's side on each of them."""

from __future__ import annotations

import secrets
from pathlib import Path

from lighthouse_scenes import Replica, seat

from torchloom.agent.lighthouse import records
from torchloom.agent.lighthouse.keeper import Lighthouses
from torchloom.agent.neighbour.door import MemoryDoor
from torchloom.agent.tasks import Tasks
from torchloom.home import Home
from torchloom.model.node import RendezvousRef
from torchloom.model.quorum import LighthouseSite

KEY = secrets.token_hex(32)


class Node:
    """An agent's side of the lighthouses of one node."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.home = Home(root / name)
        self.home.prepare()
        self._tasks = Tasks()
        self.mine = Lighthouses(self.home, self._tasks, name, "127.0.0.1")
        self.door = MemoryDoor(self.home, "127.0.0.1", self.mine.gate)
        self.door.open()

    def site(self, term: int = 1, *awaited: str) -> LighthouseSite:
        return LighthouseSite(self.name, "127.0.0.1", self.door.port, term, awaited)

    async def replica(
        self, index: int, ref: RendezvousRef, site: LighthouseSite, name: str, size: int = 2
    ) -> Replica:
        return Replica(name, (await self.mine.open(seat(index, size), ref, site, KEY))[0])

    def record(self) -> records.BeaconRecord:
        found = records.read(self.home.root / "agent" / "lighthouses" / "ft.json")
        assert found is not None
        return found

    async def close(self) -> None:
        self.door.close()
        await self._tasks.cancel()
