"""Checksums: made while files are written, compared before anything of them is used.

Owns the algorithm and the reading of files in checked form. `load` and `load_into` return only what was
compared. Nothing is ever unpickled.

The algorithm is CRC-32 as zlib has it. It has to keep up with a memory copy and must not hold the GIL: beside
each other on one busy machine crc32 made 1.4 GB/s, adler32 0.9, sha256 and sha1 0.5, blake2b 0.3, md5 0.2;
all release the GIL for large buffers. It is there to find damage (each burst of up to 32 bits surely,
anything else but for one in four thousand million); it does not, and no checksum kept beside the data
could, protect against somebody who may write to the store. They can change the weights, but run no code:
`state/tree.py` reads a fixed list of types, and no pickle.
The algorithm's name is part of the value, so a later one can be distinguished.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torchloom.checkpoint.state.crc import crc32
from torchloom.checkpoint.store.manifest import FileEntry, Manifest
from torchloom.checkpoint.store.names import file_key
from torchloom.checkpoint.store.storage import Bytes, Storage
from torchloom.errors import CheckpointDamaged, CheckpointMissing

CHUNK = 4 * 1024 * 1024
"""Small enough that a chunk is still in the cache when it is written after being summed."""
READ_CHUNK = 32 * 1024 * 1024
"""Large enough that one request to a far store is worth its round trip."""


class Checksum:
    """A running checksum and size."""

    def __init__(self, crc: int = 0, size: int = 0) -> None:
        self.size = size
        self._crc = crc

    def add(self, data: Bytes) -> None:
        self._crc = crc32(data, self._crc)
        self.size += len(data)

    @property
    def value(self) -> str:
        return f"crc32:{self._crc:08x}"


def summed(chunks: Iterable[Bytes], into: Checksum) -> Iterator[memoryview]:
    """The same bytes, in pieces of CHUNK at most, each added to the checksum as it passes."""
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        for start in range(0, len(view), CHUNK):
            piece = view[start : start + CHUNK]
            into.add(piece)
            yield piece


def load(storage: Storage, manifest: Manifest, entry: FileEntry) -> bytearray:
    """A file of a checkpoint, whole and compared. Raises CheckpointDamaged."""
    buffer = bytearray(entry.size)
    load_into(storage, manifest, entry, memoryview(buffer))
    return buffer


def read_file(
    storage: Storage, manifest: Manifest, entry: FileEntry, start: int, buffers: Sequence[memoryview]
) -> int:
    """Fill buffers, one after another, from a place in a file on; how many bytes. Nothing is compared yet."""
    try:
        key = file_key(manifest.job, manifest.name, entry.stored)
        return storage.read_scattered(key, start, buffers)
    except CheckpointMissing:
        raise CheckpointDamaged(f"{manifest.name} lacks {entry.stored}") from None


def load_into(storage: Storage, manifest: Manifest, entry: FileEntry, buffer: memoryview) -> None:
    """Fill memory that the caller keeps. On CheckpointDamaged its content means nothing."""
    assert len(buffer) == entry.size, "the buffer must have the file's size"
    total = Checksum()
    for start in range(0, entry.size, READ_CHUNK):
        piece = buffer[start : start + READ_CHUNK]
        total.add(piece[: read_file(storage, manifest, entry, start, [piece])])
    compare(manifest, entry, total)


def verify_file(storage: Storage, manifest: Manifest, entry: FileEntry) -> None:
    """Read a file through and keep nothing. Raises CheckpointDamaged."""
    total = Checksum()
    scratch = memoryview(bytearray(min(READ_CHUNK, entry.size)))
    for start in range(0, entry.size, READ_CHUNK):
        piece = scratch[: entry.size - start]
        total.add(piece[: read_file(storage, manifest, entry, start, [piece])])
    compare(manifest, entry, total)


def verify(storage: Storage, manifest: Manifest) -> None:
    """Read every file of a checkpoint through. Raises CheckpointDamaged at the first that is not right."""
    for entry in manifest.files:
        verify_file(storage, manifest, entry)


def check_sizes(manifest: Manifest, sizes: dict[str, int]) -> None:
    """Is every file there, with its size? `sizes` is a listing: key → size. Raises CheckpointDamaged."""
    for entry in manifest.files:
        size = sizes.get(file_key(manifest.job, manifest.name, entry.stored))
        if size is None:
            raise CheckpointDamaged(f"{manifest.name} lacks {entry.stored}")
        if size != entry.size:
            raise CheckpointDamaged(
                f"{entry.stored} of {manifest.name} has {size} bytes instead of {entry.size}"
            )


def compare(manifest: Manifest, entry: FileEntry, total: Checksum) -> None:
    """Is that what was written? Raises CheckpointDamaged."""
    if total.size != entry.size:
        raise CheckpointDamaged(
            f"{entry.stored} of {manifest.name} has {total.size} bytes instead of {entry.size}"
        )
    if total.value != entry.checksum:
        raise CheckpointDamaged(
            f"{entry.stored} of {manifest.name} was changed ({total.value} instead of {entry.checksum})"
        )
