"""The memory tier: the newest states of a host's ranks in shared memory, which outlives the processes.

    own-<rank>.<slot>    what this rank alone has
    shared.<slot>        what all ranks of the host have in common, kept by one of them
    gathered-<rank>, gathered-shared    one state of another number of ranks, whole, brought by the agent
    line                 which generations trained here, and from what (hostline.py)

Owns the files and the rule for overwriting them. The directory is the agent's, which removes it when the
job has ended. A file is a header, an image (image.py) and the sums of its blocks; the header is wiped
before the image is touched and written after it, so a killed process leaves a slot that says it is nothing.
Ranks inform each other of what they have sealed, and a slot is used again only if it does not hold the newest
state that **all** have sealed. Two saves of one step have one name and are two states (`KeptState`): ranks
restore the same one or none. Making a slot (`make`) touches nothing of what is in it, so it may happen at any
time and beside the training.
"""

from __future__ import annotations

import json
import math
import os
import time
import zlib
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from torchloom.checkpoint.memory import tier
from torchloom.checkpoint.memory.arriving import Promise, StateArrivals
from torchloom.checkpoint.memory.header import (
    BLOCK,
    HEAD,
    HEADER,
    SlotHeader,
    block_count,
    pack,
    padded,
    read_header,
    whole,
)
from torchloom.checkpoint.memory.hostline import HostLine
from torchloom.checkpoint.state.image import sum_blocks
from torchloom.checkpoint.state.region import Region, existing, file_backed
from torchloom.checkpoint.store.names import CheckpointName
from torchloom.errors import CheckpointDamaged
from torchloom.private import make_private, why_not_private

SPARE = BLOCK
"""How much the state may grow before its slots must be made anew: indexes vary a little in length."""


class KeptState(NamedTuple):
    """A state in memory: what it is called, and which save made it."""

    name: CheckpointName
    save: str
    """The same on all ranks; another for every save, also of the same step."""


@dataclass(frozen=True)
class Sealed:
    """A whole image in memory, by what its header says; its bytes are compared with the sums when they are
    read."""

    name: CheckpointName
    world: int
    size: int
    path: Path
    sums: torch.Tensor
    save: str = ""
    sealed_ns: int = 0
    """By the host's monotonic clock: of two states of one step the later counts."""

    @property
    def kept(self) -> KeptState:
        return KeptState(self.name, self.save)

    def map(self) -> Region:
        """Its bytes. Raises OSError, or ValueError if the file was cut short."""
        region = existing(self.path)
        if region.size < whole(self.size):
            raise ValueError("it was cut short")
        return _parts(region, self.size)[0]


class Offer(NamedTuple):
    """What a rank can restore a state in memory from."""

    own: Sealed
    shared: Sealed | None = None
    everyone: tuple[Sealed, ...] = ()
    """All images of the state, if another number of ranks saved it."""
    coming: Promise | None = None
    """It is on its way to this host, and `own` is nothing yet: see `MemoryTier.bring`."""


class SlotFile:
    """One file of the tier."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._region: Region | None = None
        self._size = 0

    def holds(self, size: int) -> bool:
        """Is there memory for an image of this size?"""
        return self._region is not None and self._region.size >= whole(size)

    def make(self, size: int) -> None:
        """Make that memory; what is in the file stays. Raises OSError without room."""
        if not self.holds(size):
            self._region = None
            self._region = file_backed(self._path, whole(size + SPARE))

    def prepare(self, size: int) -> Region:
        """Wipe the header and give the memory for an image, made now if need be. Raises OSError."""
        self.make(size)
        assert self._region is not None
        self._size = size
        self._region.bytes[: HEAD.size] = bytes(HEAD.size)
        return _parts(self._region, size)[0]

    def seal(self, name: CheckpointName, world: int, save: str = "") -> None:
        """Sum the image and say what it is; only then does it count."""
        assert self._region is not None
        payload, sums = _parts(self._region, self._size)
        sums.copy_(sum_blocks(payload, self._size))
        sealed = SlotHeader(name, world, self._size, save, time.monotonic_ns(), _crc(sums))
        head, body = pack(sealed)
        self._region.bytes[HEAD.size : HEAD.size + len(body)] = body
        self._region.bytes[: HEAD.size] = head

    def payload(self) -> memoryview:
        """The bytes of the image, to be written elsewhere."""
        assert self._region is not None
        return self._region.bytes[HEADER : HEADER + self._size]


def read(path: Path) -> Sealed | None:
    """The sealed image of a file; None if it is not one."""
    found = read_header(path)
    if found is None:
        return None
    header = found[0]
    try:
        with open(path, "rb", buffering=0) as file:
            stored = os.pread(file.fileno(), 8 * block_count(header.size), HEADER + padded(header.size))
        if len(stored) != 8 * block_count(header.size):
            return None
        sums = torch.frombuffer(bytearray(stored), dtype=torch.int64)
    except (OSError, ValueError, OverflowError):
        return None
    if _crc(sums) != header.sums:
        return None
    return Sealed(header.name, header.world, header.size, path, sums, header.save, header.sealed_ns)


class MemoryTier:
    """What this rank keeps in the memory of its host."""

    def __init__(self, directory: Path, rank: int, world: int, keeps_line: bool = True) -> None:
        self.directory, self._rank, self._world = directory, rank, world
        self.line = HostLine(directory, writes=keeps_line)
        self.arrivals = StateArrivals(directory, rank)
        self._files: dict[tuple[str, int], SlotFile] = {}
        self._held: dict[int, int] = {}
        """Which event each slot of ours holds; those of an earlier process have none."""
        self._busy: int | None = None
        self._checked = False
        self._dropped = False
        self.keep: int | None = None
        """The slot that holds the newest state sealed by all, if any."""
        self._origin: int | None = None
        """The slot that this life of the job resumed from."""

    def offers(self, arriving: bool = False) -> dict[KeptState, Offer]:
        """States that this rank can restore, oldest first: its own image and the host's shared one.

        `arriving`: also those that the agent is bringing here; waits until it knows which.
        """
        promised = self.arrivals.promised() if arriving else []
        own = self._found(tier.own(self._rank))
        shared = self._found(tier.SHARED)
        found = {kept: Offer(sealed, shared.get(kept)) for kept, sealed in own.items()}
        coming = {
            KeptState(one.name, one.save): one for one in reversed(promised) if one.world == self._world
        }
        return self._gathered() | found | {kept: self._on_its_way(one) for kept, one in coming.items()}

    def bring(self, offer: Offer) -> Offer:
        """The same once it is here. Raises CheckpointDamaged if it does not come."""
        if offer.coming is None:
            return offer
        if self.arrivals.take(offer.coming):
            for kind in ("own", tier.SHARED):  # the file there now is another one
                self._files.pop((kind, offer.coming.slot), None)
            kept = KeptState(offer.coming.name, offer.coming.save)
            own = self._found(tier.own(self._rank)).get(kept)
            if own is not None:
                return Offer(own, self._found(tier.SHARED).get(kept))
        raise CheckpointDamaged("it could not be brought from another node's memory")

    def hold(self, kept: KeptState) -> None:
        """This state was restored: its slots are not used before a newer one is sealed by all."""
        for slot in range(tier.SLOTS):
            sealed = read(self._path(tier.own(self._rank), slot))
            if sealed is not None and sealed.kept == kept:
                self.keep = self._origin = slot

    @property
    def origin(self) -> str:
        """The save that this life of the job resumed from; empty if it is not in memory."""
        sealed = read(self._path(tier.own(self._rank), self._origin)) if self._origin is not None else None
        return sealed.save if sealed is not None else ""

    def adopt(self, kept: KeptState) -> None:
        """Continue from this state: only its slot, if it is here, is worth keeping."""
        self._held.clear()
        self.keep = self._origin = None
        self.hold(kept)

    def room_for(self, own: int, shared: int, local_world: int) -> str:
        """Why the tier cannot be used, in words; empty if it can. Looked at once."""
        if self._checked:
            return ""
        self._checked = True
        needed = tier.SLOTS * ((own + SPARE) * local_world + shared + SPARE + 2 * HEADER)
        try:
            make_private(self.directory)
            taken = sum(file.stat().st_size for file in tier.slot_files(self.directory))
            free = tier.usable(self.directory) + taken
        except OSError as error:
            return f"{self.directory} cannot be used ({error.strerror})"
        if needed > free:
            return f"it needs {needed >> 20:,} MiB and {free >> 20:,} MiB may be used"
        return ""

    def holds_event(self, event: int) -> bool:
        return event in self._held.values()

    def choose(self, safe_event: int, copying: Set[int] | None = None, first: bool = False) -> list[int]:
        """Slots that may be overwritten, best first. `safe_event`: the newest sealed by all ranks. `copying`:
        events that a neighbour's copies depend on; None: there are no copies. `first`: no state of this life
        of the job was copied by all yet, so they depend on the one it resumed from.

        First what all have a newer one of, oldest first; then what holds nothing of ours; last the newest.
        """
        for slot, event in self._held.items():
            if event == safe_event:
                self.keep = slot
        kept = {self.keep, self._busy, self._origin if copying is not None and first else None}
        kept |= {slot for slot, event in self._held.items() if event in (copying or ())}
        free = [slot for slot in range(tier.SLOTS) if slot not in kept]
        older = sorted((slot for slot in free if self._age(slot) <= safe_event), key=self._age)
        unused = [slot for slot in free if slot not in self._held]
        newer = sorted((slot for slot in free if slot not in older + unused), key=self._age, reverse=True)
        return older + unused + newer

    def made(self, slot: int, sizes: Mapping[str, int]) -> bool:
        """Is there memory for images of these sizes, by kind?"""
        return all(self.file(kind, slot).holds(size) for kind, size in sizes.items())

    def make(self, slot: int, sizes: Mapping[str, int]) -> None:
        """Make it. Raises OSError."""
        for kind, size in sizes.items():
            self.file(kind, slot).make(size)

    def file(self, kind: str, slot: int) -> SlotFile:
        name = tier.own(self._rank) if kind == "own" else kind
        if (kind, slot) not in self._files:
            self._files[kind, slot] = SlotFile(self._path(name, slot))
        return self._files[kind, slot]

    def sealed(self, slot: int, event: int) -> None:
        self._held[slot] = event

    def begin_write(self, slot: int | None) -> None:
        """The slot is being written to disk (None: no longer)."""
        self._busy = slot

    def drop_gathered(self) -> None:
        """All ranks have a newer state of their own number; the memory of the other is given back, once."""
        if not self._dropped and self.line.writes:
            self._dropped = True
            tier.drop_gathered(self.directory)

    def drop(self) -> None:
        """Give the memory back."""
        self._files.clear()
        for slot in range(tier.SLOTS):
            for name in (tier.own(self._rank), tier.SHARED):
                with suppress(OSError):
                    self._path(name, slot).unlink()

    def _age(self, slot: int) -> float:
        return self._held.get(slot, math.inf)

    def _found(self, name: str) -> dict[KeptState, Sealed]:
        if why_not_private(self.directory):  # whoever made it could have put a state of their own there
            return {}
        found = [sealed for slot in range(tier.SLOTS) if (sealed := read(self._path(name, slot))) is not None]
        found.sort(key=lambda sealed: sealed.sealed_ns)
        return {sealed.kept: sealed for sealed in found if sealed.world == self._world}

    def _on_its_way(self, coming: Promise) -> Offer:
        path = tier.arriving(self.directory, tier.own(self._rank), coming.slot)
        sums = torch.empty(0, dtype=torch.int64)
        return Offer(Sealed(coming.name, coming.world, 0, path, sums, coming.save), coming=coming)

    def _gathered(self) -> dict[KeptState, Offer]:
        """The state that another number of ranks saved, if all of it is on this host."""
        if why_not_private(self.directory):
            return {}
        first = read(tier.gathered(self.directory, 0))
        if first is None or first.world > len(tier.all_gathered(self.directory)):
            return {}
        whole_world = [read(tier.gathered(self.directory, rank)) for rank in range(first.world)]
        images = [one for one in whole_world if one is not None and one.kept == first.kept]
        if len(images) != first.world:
            return {}
        shared = read(tier.gathered(self.directory, tier.SHARED))
        shared = shared if shared is not None and shared.kept == first.kept else None
        everyone = (*images, *([shared] if shared is not None else []))
        own = images[self._rank % first.world]
        return {first.kept: Offer(own, shared, everyone if first.world != self._world else ())}

    def _path(self, name: str, slot: int) -> Path:
        return tier.file(self.directory, name, slot)


def held_by_all(offers: Sequence[Sequence[KeptState]]) -> dict[CheckpointName, KeptState]:
    """The states that every rank can restore, from the `offers` of each: of several saves of one step the
    newest that all have."""
    if not offers:
        return {}
    everywhere = set.intersection(*(set(mine) for mine in offers))
    return {kept.name: kept for kept in offers[0] if kept in everywhere}


def _parts(region: Region, size: int) -> tuple[Region, torch.Tensor]:
    end = HEADER + padded(size)
    sums = region.tensor[end : end + 8 * block_count(size)].view(torch.int64)
    return region.part(HEADER, end), sums


def _crc(sums: torch.Tensor) -> int:
    return zlib.crc32(json.dumps(sums.tolist()).encode())
