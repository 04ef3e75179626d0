"""A state as images in memory, from the memory tier or from the store, compared with its checksums.

Owns the way from where a state is kept to what Filling reads. Changes nothing of the training: whoever has
the images may still decide against them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torchloom.checkpoint.filling import Images
from torchloom.checkpoint.image import Reading
from torchloom.checkpoint.manifest import FileEntry, Manifest
from torchloom.checkpoint.memory import Sealed
from torchloom.checkpoint.region import Region, anonymous
from torchloom.checkpoint.storage import Storage
from torchloom.checkpoint.verify import load_into
from torchloom.errors import CheckpointDamaged


def from_memory(offer: Mapping[str, Sealed]) -> Images:
    """From the slots of this host. Raises CheckpointDamaged."""
    if "own" not in offer:
        raise CheckpointDamaged("the state in memory is gone")
    own = offer["own"]
    shared = offer.get("shared")
    return Images(
        own=Reading(own.payload, own.size, own.sums),
        shared=Reading(shared.payload, shared.size, shared.sums) if shared else None,
        same_world=True,
        everyone=lambda: iter(()),
    )


def from_store(storage: Storage, manifest: Manifest, rank: int, world: int) -> Images:
    """From the files of a checkpoint, for one rank of a world of any size. Raises CheckpointError."""
    source = rank % manifest.world
    entries = {entry.name: entry for entry in manifest.of_rank(source) if entry.name == "own"}
    entries |= {entry.name: entry for entry in manifest.files if entry.name == "shared"}
    if "own" not in entries:
        raise CheckpointDamaged(f"{manifest.name} holds nothing of rank {source}")

    def reading(entry: FileEntry, region: Region | None = None) -> Reading:
        region = region or anonymous(entry.size)
        load_into(storage, manifest, entry, region.bytes[: entry.size])
        return Reading(region, entry.size)

    def everyone() -> Iterator[Reading]:
        largest = max(entry.size for entry in manifest.files)
        scratch = anonymous(largest)
        for entry in manifest.files:
            yield reading(entry, scratch)

    shared = entries.get("shared")
    return Images(
        own=reading(entries["own"]),
        shared=reading(shared) if shared else None,
        same_world=manifest.world == world,
        everyone=everyone,
    )
