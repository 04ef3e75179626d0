"""A state as images, from the memory tier or from the store, for Filling to read.

Owns the two ways to it. `from_memory` and `from_store` compare everything before they return, in memory of
their own: whoever has the images may still decide against them, as a live rollback does. `stream_memory` and
`stream_store` compare while Filling copies and take no memory: for a restart, where nothing is worth keeping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torchloom.checkpoint.memory.header import HEADER
from torchloom.checkpoint.memory.slots import Offer, Sealed
from torchloom.checkpoint.state.filling import Images
from torchloom.checkpoint.state.image import Reading
from torchloom.checkpoint.state.region import Region, anonymous
from torchloom.checkpoint.state.streaming import SlotSource, StoreSource, Streamed
from torchloom.checkpoint.store.manifest import FileEntry, Manifest
from torchloom.checkpoint.store.storage import Storage
from torchloom.checkpoint.store.verify import load_into
from torchloom.errors import CheckpointDamaged


def from_memory(offer: Offer | None) -> Images:
    """From the memory of this host. Raises CheckpointDamaged."""
    return _of_offer(offer, _mapped)


def stream_memory(offer: Offer | None) -> Images:
    """The same, compared while it is copied. Raises CheckpointDamaged."""
    return _of_offer(
        offer, lambda kept: Streamed(SlotSource(kept.path, HEADER, kept.size, kept.sums.tolist()))
    )


def _of_offer(offer: Offer | None, read: Callable[[Sealed], Reading | Streamed]) -> Images:
    if offer is None:
        raise CheckpointDamaged("the state in memory is gone")
    shared = offer.shared
    return Images(
        own=read(offer.own),
        shared=read(shared) if shared is not None else None,
        same_world=not offer.everyone,
        everyone=lambda: map(_mapped, offer.everyone),
    )


def _mapped(kept: Sealed) -> Reading:
    try:
        return Reading(kept.map(), kept.size, kept.sums)
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(f"the state in memory is gone ({error})") from error


def from_store(storage: Storage, manifest: Manifest, rank: int, world: int) -> Images:
    """From the files of a checkpoint, for one rank of a world of any size. Raises CheckpointError."""
    return _images(storage, manifest, rank, world, lambda entry: _reading(storage, manifest, entry))


def stream_store(storage: Storage, manifest: Manifest, rank: int, world: int) -> Images:
    """The same, read and compared while it is copied. Raises CheckpointError."""

    def streamed(entry: FileEntry) -> Streamed:
        return Streamed(StoreSource(storage, manifest, entry))

    return _images(storage, manifest, rank, world, streamed)


def _images(
    storage: Storage,
    manifest: Manifest,
    rank: int,
    world: int,
    read: Callable[[FileEntry], Reading | Streamed],
) -> Images:
    source = rank % manifest.world
    entries = {entry.name: entry for entry in manifest.of_rank(source) if entry.name == "own"}
    entries |= {entry.name: entry for entry in manifest.files if entry.name == "shared"}
    if "own" not in entries:
        raise CheckpointDamaged(f"{manifest.name} holds nothing of rank {source}")

    def everyone() -> Iterator[Reading]:
        scratch = anonymous(max(entry.size for entry in manifest.files))
        for entry in manifest.files:
            yield _reading(storage, manifest, entry, scratch)

    shared = entries.get("shared")
    return Images(
        own=read(entries["own"]),
        shared=read(shared) if shared else None,
        same_world=manifest.world == world,
        everyone=everyone,
    )


def _reading(storage: Storage, manifest: Manifest, entry: FileEntry, region: Region | None = None) -> Reading:
    region = region or anonymous(entry.size)
    load_into(storage, manifest, entry, region.bytes[: entry.size])
    return Reading(region, entry.size)
