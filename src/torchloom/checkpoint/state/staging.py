"""Staging: one warm copy of the state into memory that is kept.

Owns that memory: slots of the memory tier if there is one, else anonymous memory for what this rank writes
to the store. The copy is both the newest state in memory and the source of the write to the store, so the
tier costs nothing besides.

Fresh memory is made beside the training (making.py): two slots, or the anonymous memory, from the end of the
first step on, a third slot when it is first missed. Until then nothing is saved unless somebody asks for it
(`save`): what is due is deferred, as it is while a save is being written. Training waits for fresh pages only
where it asks for a save before they are there, and where the state itself has grown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchloom.checkpoint.group import Board, SaveGroup
from torchloom.checkpoint.memory import tier as places
from torchloom.checkpoint.memory.copying import CopyAgreement
from torchloom.checkpoint.memory.slots import SPARE, KeptState, MemoryTier, SlotFile
from torchloom.checkpoint.state.fresh_pages import INLINE, Making
from torchloom.checkpoint.state.image import Image
from torchloom.checkpoint.state.planning import Planner
from torchloom.checkpoint.state.region import Region, anonymous
from torchloom.checkpoint.state.threads import BriefPause, beside
from torchloom.checkpoint.state.training_parts import ABOUT, State
from torchloom.checkpoint.store.names import CheckpointName

_SEALED = "sealed"
_OFF = -1
IN_TURN = 2
"""Slots that are made beforehand."""


@dataclass(frozen=True)
class Staged:
    """A state that was copied."""

    files: Mapping[str, memoryview] | None
    """What this rank writes to the store; None if that is impossible now."""
    growth_s: float
    """Time spent on making memory, which the next save will not need."""
    note: str = ""


@dataclass(frozen=True)
class _Sealing:
    """The newest state on its way to being sealed."""

    slots: list[SlotFile]
    name: CheckpointName
    world: int
    event: int
    save: str
    done: threading.Event = field(default_factory=threading.Event)
    """Set however it ends: training may be waiting for it."""
    sealed: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        try:
            for slot in self.slots:
                slot.seal(self.name, self.world, self.save)
            self.sealed.set()
        finally:
            self.done.set()


class Staging:
    """The kept memory of one rank."""

    def __init__(self, state: State, group: SaveGroup, tier: MemoryTier | None) -> None:
        self._state, self._group = state, group
        self.tier = tier
        self.board: Board | None = None
        self._series = ""  # begins the name of every save
        self._planners = {"own": Planner(fresh=(ABOUT,)), "shared": Planner()}
        self._regions: dict[str, Region] = {}
        self._making = Making()
        self._begun = False
        self._sealed_event = 0
        self._sealing: _Sealing | None = None
        self._seal: Callable[[], None] | None = None
        self._pause = BriefPause()
        self._sizes: dict[str, int] = {}
        self._missed_one = False
        self._copies = CopyAgreement(group, tier.directory) if tier is not None else None

    def connect(self, board: Board | None, series: str) -> None:
        """Saves begin, under names that begin with `series`. All ranks call it."""
        self.board, self._series = board, series
        if self._copies is not None:
            self._copies.connect(board, series, self.tier.origin if self.tier is not None else "")
        if self._sealed_event:  # the others wait for our first word on this board
            self._tell_sealed()

    @property
    def folder(self) -> Path | None:
        """Of the memory tier, if there is one."""
        return self.tier.directory if self.tier is not None else None

    @property
    def making(self) -> bool:
        """Is memory being made that a save would need?"""
        return self._making.busy

    def begin(self) -> str:
        """Make memory for the saves to come, once; what there is to say. All ranks call it at one step."""
        if self._begun:
            return ""
        self._begun = True
        images = self._plan({})
        note = self._check(images) if self.tier is not None else ""
        if self.tier is None:
            sizes = {k: size for k, size in self._sizes.items() if k == "own" or self._group.rank == 0}
            self._making.start(sum(sizes.values()), lambda: self._make_regions(sizes))
        else:
            self._make_slots(self.tier.choose(0)[:IN_TURN], self._sizes)
        return note

    def finish_making(self) -> None:
        self._making.wait()

    def look(self, *, wait: bool = False, tell: bool = True) -> None:
        """Once the newest state is sealed, inform the other ranks. Called at every step."""
        if self._sealing is None:
            return
        if wait:
            self._pause.end()
            self._start_sealing()
            self._sealing.done.wait()
        if self._sealing.done.is_set():
            if self._sealing.sealed.is_set():
                self._sealed_event = self._sealing.event
            self._sealing = None
            if tell:
                self._tell_sealed()

    def take(self, name: CheckpointName, about: Mapping[str, Any], event: int, *, to_store: bool) -> Staged:
        """Copy the state. With a tier it is sealed in memory; `to_store` asks for the bytes to write.

        Whoever writes them calls `seal_first` before; then, as the last thing, comes `go_on`.
        """
        self.look(wait=True)
        images = self._plan(about)
        note = self._check(images) if self.tier is not None else ""
        if to_store:
            self._making.wait()
        problem = None if self._making.busy else self._making.problem()
        if problem is not None and self.tier is not None:
            note = self._turn_off(f"shared memory cannot be had ({problem.strerror})")
        slot = self._slot(to_store)
        if slot is None:
            self._tell_sealed()  # others must not wait for our first word
            if not to_store:
                return Staged(None, 0.0, note)
            files, growth_s = self._to_regions(images)
        else:
            try:
                files, growth_s = self._to_slot(slot, images, name, event)
            except OSError as error:  # no room left, or somebody removed it
                note = self._turn_off(f"shared memory cannot be had ({error.strerror})")
                files, growth_s = self._to_regions(images)
        if self._group.rank != 0:
            files.pop("shared", None)
        if self.tier is not None and slot is not None and to_store:
            self.tier.begin_write(slot)
        return Staged(files if to_store else None, growth_s, note)

    def seal_first(self, pause: BriefPause) -> Callable[[], None] | None:
        """The function that seals the newest state, for a thread that does more; that thread must call it,
        after the pause."""
        work, self._seal, self._pause = self._seal, None, pause
        return work

    def go_on(self, pause: BriefPause) -> None:
        """What is left to do beside the training: seal, after the pause, and make a slot. The last thing that
        a save does."""
        self._pause = pause
        self._start_sealing()
        if self.tier is None or self._making.busy:
            return
        made = [slot for slot in range(places.SLOTS) if self.tier.made(slot, self._sizes)]
        missing = [slot for slot in range(places.SLOTS) if slot not in made]
        if missing and (self._missed_one or len(made) < IN_TURN):
            self._make_slots(missing[:1], self._sizes)
        self._missed_one = False

    def written(self) -> None:
        """The store has what it was given; the memory may be used again."""
        if self.tier is not None:
            self.tier.begin_write(None)

    def begin_branch(self, origin: KeptState) -> None:
        """Training resumes from another state: free the memory of the abandoned branch."""
        if self.tier is not None:
            self.tier.adopt(origin)
        if self._copies is not None:
            self._copies.restart_from(origin.save)

    def _plan(self, about: Mapping[str, Any]) -> dict[str, Image]:
        keeps = self._group.keeps_shared if self.tier else self._group.rank == 0
        own, shared = self._state.take(about, with_shared=keeps)
        images = {"own": self._planners["own"].plan(own)}
        if shared:
            images["shared"] = self._planners["shared"].plan(shared)
        self._sizes = {kind: image.size for kind, image in images.items()}
        return images

    def _check(self, images: Mapping[str, Image]) -> str:
        assert self.tier is not None
        shared = images["shared"].size if "shared" in images else 0
        why = self.tier.room_for(images["own"].size, shared, self._group.local_world)
        return self._turn_off(why) if why else ""

    def _turn_off(self, why: str) -> str:
        """From now on without the tier. The others see it by our note and do the same."""
        assert self.tier is not None
        self._making.wait()
        self.tier.drop()
        self.tier = None
        if self.board is not None:
            self.board.note_mine(_SEALED, _OFF)
        return f"the memory tier is off, because {why}"

    def _tell_sealed(self) -> None:
        if self.board is not None and self.tier is not None:
            self.board.note_mine(_SEALED, self._sealed_event)

    def _slot(self, to_store: bool) -> int | None:
        """The slot to copy into; None: do without the tier this time."""
        if self.tier is None or self._making.busy:
            return None
        safe = self._sealed_event
        if self.board is not None and self._sealed_event:
            lowest = self.board.lowest(_SEALED)
            if lowest is None:
                return None  # which states all ranks have is not known now; every rank notes it again later
            if lowest == _OFF:
                self._turn_off("another rank has no room for it")
                return None
            safe = min(safe, lowest)
        free = self._free(self.tier, safe)
        made = [slot for slot in free if self.tier.made(slot, self._sizes)]
        self._missed_one = free[:1] != made[:1]
        if made or not to_store:
            return made[0] if made else None
        return free[0] if free else None

    def _free(self, tier: MemoryTier, safe: int) -> list[int]:
        """Slots that may be overwritten. What is sealed was looked at before: see copying.py."""
        if self._copies is None or not safe:
            return tier.choose(safe)
        copying = self._copies.protected(safe, tier.holds_event)
        if copying is None or self._copies.everywhere:
            tier.drop_gathered()
        return tier.choose(safe, copying, first=not self._copies.everywhere)

    def _make_slots(self, slots: list[int], sizes: Mapping[str, int]) -> None:
        tier = self.tier
        assert tier is not None

        def work() -> None:
            for slot in slots:
                tier.make(slot, sizes)

        self._making.start(len(slots) * sum(sizes.values()), work)

    def _make_regions(self, sizes: Mapping[str, int]) -> None:
        for kind, size in sizes.items():
            if kind not in self._regions or self._regions[kind].size < size:
                self._regions.pop(kind, None)
                self._regions[kind] = anonymous(size + SPARE)

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
        self._sealing = _Sealing(slots, name, self._group.world, event, f"{self._series}.{event}")
        if sum(self._sizes.values()) <= INLINE:
            self._sealing.run()
        else:
            self._seal = self._sealing.run
        return files, growth_s

    def _to_regions(self, images: Mapping[str, Image]) -> tuple[dict[str, memoryview], float]:
        began = time.perf_counter()
        self._make_regions(self._sizes)
        growth_s = time.perf_counter() - began
        files: dict[str, memoryview] = {}
        for kind, image in images.items():
            image.copy_into(self._regions[kind])
            files[kind] = self._regions[kind].bytes[: image.size]
        return files, growth_s

    def _start_sealing(self) -> None:
        """On a separate thread, unless another caller does it."""
        work = self.seal_first(self._pause)
        if work is not None and beside(work, "loom-seal", self._pause) is None:
            work()
