"""The memory of hosts, filled as ranks and agents fill it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from torchloom.agent.neighbour.plans import KeptPlan
from torchloom.agent.neighbour.slot_transfer import copied_slots
from torchloom.checkpoint.memory import header, tier
from torchloom.checkpoint.memory.header import HEADER, SlotHeader
from torchloom.checkpoint.store.names import CheckpointName
from torchloom.home import Home
from torchloom.model.neighbours import MemoryPeer
from torchloom.private import make_private

JOB, KEY = "job", "11" * 32


class Side:
    """The memory of one host."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root)
        self.folder = tier.directory(self.home.boxes, JOB)
        make_private(self.folder)
        self.plan()

    def plan(self, generation: int = 1) -> None:
        plan = KeptPlan(generation, MemoryPeer("other", "127.0.0.1", 1), KEY)
        tier.neighbour(self.folder).write_bytes(msgspec.json.encode(plan))

    def seal(self, path: Path, save: str, step: int = 5, size: int = 3 << 20, world: int = 2) -> bytes:
        """A slot as a rank leaves it; what is in it."""
        facts = SlotHeader(CheckpointName(1, step), world, size, save, step, 0)
        body = os.urandom(facts.whole - HEADER)
        path.write_bytes(b"".join(header.pack(facts)).ljust(HEADER, b"\0") + body)
        return body

    def own(self, rank: int, slot: int) -> Path:
        return tier.file(self.folder, tier.own(rank), slot)

    def copies(self, rank: int) -> list[str]:
        return [slot.header.save for slot in copied_slots(self.folder, rank)]


def sides(root: Path) -> Iterator[Side]:
    """One, for a fixture."""
    side = Side(root)
    try:
        yield side
    finally:
        tier.release(side.folder)
        with suppress(OSError):
            side.home.boxes.rmdir()
