"""The memory tier: the newest states of a host's ranks in shared memory, which outlives the processes.

    own-<rank>.<slot>    what this rank alone has
    shared.<slot>        what all ranks of the host have in common, kept by one of them
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
import shutil
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from torchloom.checkpoint.memory import tier
from torchloom.checkpoint.memory.hostline import HostLine
from torchloom.checkpoint.state.image import BLOCK, block_count, sum_blocks
from torchloom.checkpoint.state.region import Region, existing, file_backed
from torchloom.checkpoint.store.names import CheckpointName
from torchloom.private import make_private, why_not_private

HEADER = 4096
_MAGIC = b"LOOMMEM1"
_HEAD = struct.Struct("<8sII")
SLOTS = 3
"""Two in turn; a third is made while one is being written to disk or another rank has not sealed the last."""
SPARE = BLOCK
"""How much the state may grow before its slots must be made anew: indexes vary a little in length."""
USABLE = 0.8
"""How much of the memory that is free now the tier may take."""


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
        if region.size < _whole(self.size):
            raise ValueError("it was cut short")
        return _parts(region, self.size)[0]


class SlotFile:
    """One file of the tier."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._region: Region | None = None
        self._size = 0

    def holds(self, size: int) -> bool:
        """Is there memory for an image of this size?"""
        return self._region is not None and self._region.size >= _whole(size)

    def make(self, size: int) -> None:
        """Make that memory; what is in the file stays. Raises OSError without room."""
        if not self.holds(size):
            self._region = None
            self._region = file_backed(self._path, _whole(size + SPARE))

    def prepare(self, size: int) -> Region:
        """Wipe the header and give the memory for an image, made now if need be. Raises OSError."""
        self.make(size)
        assert self._region is not None
        self._size = size
        self._region.bytes[: _HEAD.size] = bytes(_HEAD.size)
        return _parts(self._region, size)[0]

    def seal(self, name: CheckpointName, world: int, save: str = "") -> None:
        """Sum the image and say what it is; only then does it count."""
        assert self._region is not None
        payload, sums = _parts(self._region, self._size)
        sums.copy_(sum_blocks(payload, self._size))
        body = json.dumps(
            {
                "generation": name.generation,
                "branch": name.branch,
                "step": name.step,
                "world": world,
                "size": self._size,
                "save": save,
                "sealed_ns": time.monotonic_ns(),
                "sums": _crc(sums),
            }
        ).encode()
        self._region.bytes[_HEAD.size : _HEAD.size + len(body)] = body
        self._region.bytes[: _HEAD.size] = _HEAD.pack(_MAGIC, len(body), zlib.crc32(body))

    def payload(self) -> memoryview:
        """The bytes of the image, to be written elsewhere."""
        assert self._region is not None
        return self._region.bytes[HEADER : HEADER + self._size]


def read(path: Path) -> Sealed | None:
    """The sealed image of a file; None if it is not one."""
    try:
        with open(path, "rb", buffering=0) as file:
            head = os.pread(file.fileno(), HEADER, 0)
            magic, length, crc = _HEAD.unpack(head[: _HEAD.size])
            body = head[_HEAD.size : _HEAD.size + length]
            if magic != _MAGIC or length > HEADER - _HEAD.size or zlib.crc32(body) != crc:
                return None
            facts = json.loads(body)
            size = int(facts["size"])
            if not 0 <= size <= os.fstat(file.fileno()).st_size:
                return None
            found = os.pread(file.fileno(), 8 * block_count(size), HEADER + _padded(size))
        if len(found) != 8 * block_count(size):
            return None
        sums = torch.frombuffer(bytearray(found), dtype=torch.int64)
        if _crc(sums) != facts["sums"]:
            return None
        name = CheckpointName(int(facts["generation"]), int(facts["step"]), int(facts["branch"]))
        save = str(facts.get("save", facts.get("event", "")))  # an older torchloom counted events only
        return Sealed(name, int(facts["world"]), size, path, sums, save, int(facts.get("sealed_ns", 0)))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, struct.error):
        return None


class MemoryTier:
    """What this rank keeps in the memory of its host."""

    def __init__(self, directory: Path, rank: int, world: int, keeps_line: bool = True) -> None:
        self.directory, self._rank, self._world = directory, rank, world
        self.line = HostLine(directory, writes=keeps_line)
        self._files: dict[tuple[str, int], SlotFile] = {}
        self._held: dict[int, int] = {}
        """Which event each slot of ours holds; those of an earlier process have none."""
        self._busy: int | None = None
        self._checked = False
        self.keep: int | None = None
        """The slot that holds the newest state sealed by all, if any."""

    def offers(self) -> dict[KeptState, dict[str, Sealed]]:
        """States that this rank can restore, oldest first: its own image and the host's shared one."""
        own = self._found(tier.own(self._rank))
        shared = self._found(tier.SHARED)
        return {
            kept: {"own": sealed, **({tier.SHARED: shared[kept]} if kept in shared else {})}
            for kept, sealed in own.items()
        }

    def hold(self, kept: KeptState) -> None:
        """This state was restored: its slots are not used before a newer one is sealed by all."""
        for slot in range(SLOTS):
            sealed = read(self._path(tier.own(self._rank), slot))
            if sealed is not None and sealed.kept == kept:
                self.keep = slot

    def adopt(self, kept: KeptState) -> None:
        """Continue from this state: only its slot, if it is here, is worth keeping."""
        self._held.clear()
        self.keep = None
        self.hold(kept)

    def room_for(self, own: int, shared: int, local_world: int) -> str:
        """Why the tier cannot be used, in words; empty if it can. Looked at once."""
        if self._checked:
            return ""
        self._checked = True
        needed = SLOTS * ((own + SPARE) * local_world + shared + SPARE + 2 * HEADER)
        try:
            make_private(self.directory)
            taken = sum(file.stat().st_size for file in self.directory.iterdir())
            free = int(USABLE * _free(self.directory)) + taken
        except OSError as error:
            return f"{self.directory} cannot be used ({error.strerror})"
        if needed > free:
            return f"it needs {needed >> 20:,} MiB and {free >> 20:,} MiB may be used"
        return ""

    def choose(self, safe_event: int) -> list[int]:
        """Slots that may be overwritten, best first. `safe_event`: the newest sealed by all ranks.

        First what all have a newer one of, oldest first; then what holds nothing of ours; last the newest.
        """
        for slot, event in self._held.items():
            if event == safe_event:
                self.keep = slot
        free = [slot for slot in range(SLOTS) if slot not in (self.keep, self._busy)]
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

    def drop(self) -> None:
        """Give the memory back."""
        self._files.clear()
        for slot in range(SLOTS):
            for name in (tier.own(self._rank), tier.SHARED):
                with suppress(OSError):
                    self._path(name, slot).unlink()

    def _age(self, slot: int) -> float:
        return self._held.get(slot, math.inf)

    def _found(self, name: str) -> dict[KeptState, Sealed]:
        if why_not_private(self.directory):  # whoever made it could have put a state of their own there
            return {}
        found = [sealed for slot in range(SLOTS) if (sealed := read(self._path(name, slot))) is not None]
        found.sort(key=lambda sealed: sealed.sealed_ns)
        return {sealed.kept: sealed for sealed in found if sealed.world == self._world}

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
    end = HEADER + _padded(size)
    sums = region.tensor[end : end + 8 * block_count(size)].view(torch.int64)
    return region.part(HEADER, end), sums


def _padded(size: int) -> int:
    return block_count(size) * BLOCK


def _whole(size: int) -> int:
    """Bytes of the file of an image of that size."""
    return HEADER + _padded(size) + 8 * block_count(size)


def _crc(sums: torch.Tensor) -> int:
    return zlib.crc32(json.dumps(sums.tolist()).encode())


def _free(directory: Path) -> int:
    """Memory that may be used: of the file system, of the host, and of this container."""
    free = [shutil.disk_usage(directory).free]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        free.append(limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    return max(0, min(free))
