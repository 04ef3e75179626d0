"""Staging: one warm copy of the state into memory that is kept.

Owns that memory: slots of the memory tier if there is one, else anonymous memory for what this rank writes
to the store. Pages are made when the state first needs them and are not counted as cost, because it happens
once. The copy is both the newest state in memory and the source of the write to the store, so the tier
costs nothing besides.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchloom.checkpoint.group import Board, Group
from torchloom.checkpoint.image import Image, plan
from torchloom.checkpoint.memory import MemoryTier, SlotFile
from torchloom.checkpoint.names import CheckpointName
from torchloom.checkpoint.region import Region, anonymous
from torchloom.checkpoint.state import State

_SEALED = "sealed"
_OFF = -1
INLINE = 8 << 20
"""Images up to this size are sealed at once; summing larger ones is left to a thread of that moment."""


@dataclass(frozen=True)
class Staged:
    """A state that was copied."""

    files: Mapping[str, memoryview] | None
    """What this rank writes to the store; None if that is impossible now."""
    growth_s: float
    """Time spent on making memory, which the next save will not need."""
    note: str = ""


class Staging:
    """The kept memory of one rank."""

    def __init__(self, state: State, group: Group, tier: MemoryTier | None) -> None:
        self._state, self._group = state, group
        self.tier = tier
        self.board: Board | None = None
        self._regions: dict[str, Region] = {}
        self._sealed_event = 0
        self._sealing: tuple[threading.Thread | None, int] | None = None
        """Who seals the newest state (None: it is done), and which event it is."""

    def look(self, *, wait: bool = False, tell: bool = True) -> None:
        """Once the newest state is sealed, tell the other ranks. Called at every step."""
        if self._sealing is None:
            return
        thread, event = self._sealing
        if wait and thread is not None:
            thread.join()
        if thread is None or not thread.is_alive():
            self._sealing = None
            self._sealed_event = event
            if self.board is not None and tell:
                self.board.note_mine(_SEALED, event)

    def take(self, name: CheckpointName, about: Mapping[str, Any], event: int, *, to_store: bool) -> Staged:
        """Copy the state. With a tier it is sealed in memory; `to_store` asks for the bytes to write."""
        self.look(wait=True)
        keeps = self._group.keeps_shared if self.tier else self._group.rank == 0
        own, shared = self._state.take(about, with_shared=keeps)
        images = {"own": plan(own)}
        if shared:
            images["shared"] = plan(shared)
        note = ""
        if self.tier is not None:
            note = self._check(images)
        slot = self._slot(event)
        if slot is None:
            if not to_store:
                return Staged(None, 0.0, note)
            files, growth_s = self._to_regions(images)
        else:
            try:
                files, growth_s = self._to_slot(slot, images, name, event)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                    raise
                note = self._turn_off("there is no room left in shared memory")
                files, growth_s = self._to_regions(images)
        if self._group.rank != 0:
            files.pop("shared", None)
        if self.tier is not None and slot is not None and to_store:
            self.tier.begin_write(slot)
        return Staged(files if to_store else None, growth_s, note)

    def written(self) -> None:
        """The store has what it was given; the memory may be used again."""
        if self.tier is not None:
            self.tier.begin_write(None)

    def begin_branch(self, name: CheckpointName) -> None:
        """The training goes on from another state: memory of the branch that was left is free."""
        if self.tier is not None:
            self.tier.adopt(name)

    def _check(self, images: Mapping[str, Image]) -> str:
        assert self.tier is not None
        shared = images["shared"].size if "shared" in images else 0
        why = self.tier.room_for(images["own"].size, shared, self._group.local_world)
        return self._turn_off(why) if why else ""

    def _turn_off(self, why: str) -> str:
        """From now on without the tier. The others see it by our note and do the same."""
        assert self.tier is not None
        self.tier.drop()
        self.tier = None
        if self.board is not None:
            self.board.note_mine(_SEALED, _OFF)
        return f"the memory tier is off, because {why}"

    def _slot(self, event: int) -> int | None:
        if self.tier is None:
            return None
        safe = self._sealed_event
        if self.board is not None and self._sealed_event:
            lowest = self.board.lowest(_SEALED)
            if lowest == _OFF:
                self._turn_off("another rank has no room for it")
                return None
            safe = min(safe, lowest)
        return self.tier.choose(safe)

    def _to_slot(
        self, slot: int, images: Mapping[str, Image], name: CheckpointName, event: int
    ) -> tuple[dict[str, memoryview], float]:
        assert self.tier is not None
        growth_s = 0.0
        files: dict[str, memoryview] = {}
        for kind, image in images.items():
            began = time.perf_counter()
            file = self.tier.file(kind, slot)
            region = file.prepare(image.size)
            growth_s += time.perf_counter() - began
            image.copy_into(region)
            files[kind] = file.payload()
        self.tier.sealed(slot, event)
        # What is shared first: a rank whose own image is sealed has sealed everything it keeps.
        slots = [self.tier.file(kind, slot) for kind in sorted(images, reverse=True)]
        if sum(image.size for image in images.values()) <= INLINE:
            _seal(slots, name, self._group.world)
            self._sealing = (None, event)
        else:
            work = (slots, name, self._group.world)
            thread = threading.Thread(target=_seal, args=work, name="loom-seal", daemon=True)
            thread.start()
            self._sealing = (thread, event)
        return files, growth_s

    def _to_regions(self, images: Mapping[str, Image]) -> tuple[dict[str, memoryview], float]:
        growth_s = 0.0
        files: dict[str, memoryview] = {}
        for kind, image in images.items():
            if kind not in self._regions or self._regions[kind].size < image.size:
                began = time.perf_counter()
                self._regions.pop(kind, None)
                self._regions[kind] = anonymous(image.size)
                growth_s += time.perf_counter() - began
            image.copy_into(self._regions[kind])
            files[kind] = self._regions[kind].bytes[: image.size]
        return files, growth_s


def _seal(slots: list[SlotFile], name: CheckpointName, world: int) -> None:
    for slot in slots:
        slot.seal(name, world)
