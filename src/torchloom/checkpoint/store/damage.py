"""Damages a checkpoint on purpose, so that one can see it found and passed over. Nothing else uses it."""

from __future__ import annotations

import random
from collections.abc import Iterator

from torchloom.checkpoint.store.names import file_key
from torchloom.checkpoint.store.reader import look
from torchloom.checkpoint.store.storage import Storage
from torchloom.errors import CheckpointDamaged, CheckpointMissing

_CHUNK = 1 << 22


def damage_newest(storage: Storage, job: str, seed: int) -> str:
    """Flip one bit in one file of the newest checkpoint that is whole; the file's key, or nothing if there is
    none. Size and name stay, as with a disk that forgets."""
    chance = random.Random(seed)
    listing = look(storage, job)
    for name in listing.committed:
        try:
            manifest = listing.manifest(name)
        except (CheckpointDamaged, CheckpointMissing):
            continue
        files = [entry for entry in manifest.files if entry.size]
        if not files:
            continue
        entry = chance.choice(files)
        key = file_key(job, name, entry.stored)
        size = storage.size(key) or 0
        place = chance.randrange(size)
        storage.put(key, list(_flipped(storage, key, size, place)))
        return key
    return ""


def _flipped(storage: Storage, key: str, size: int, place: int) -> Iterator[bytes]:
    for start in range(0, size, _CHUNK):
        piece = bytearray(min(_CHUNK, size - start))
        storage.read_scattered(key, start, [memoryview(piece)])
        if start <= place < start + len(piece):
            piece[place - start] ^= 1
        yield bytes(piece)
