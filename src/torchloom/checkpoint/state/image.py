"""An image: the state of a rank as one run of bytes, the same in memory, on disk and in an object store.

    0      magic, length of the index, its CRC-32
    24     index: JSON with the trees, a record of every tensor, and the generators
    …      tensors, each at a multiple of ALIGN

Owns that layout, the copy into it (staging), the copy out of one that is in memory (streaming.py has the copy
out of one that is not), and sums by which changed memory is found. The sum of a block is that of its 64-bit
words: a tenth of the price of CRC-32, which is what the memory tier can afford; files carry a CRC-32 besides
(verify.py).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torchloom.checkpoint.leaves import sharing
from torchloom.checkpoint.memory.header import BLOCK, block_count
from torchloom.checkpoint.state.moving import Moves, move, place, prepare
from torchloom.checkpoint.state.region import Region
from torchloom.checkpoint.state.tree import DTYPES, Encoder, Record
from torchloom.errors import CheckpointDamaged

MAGIC = b"LOOMIMG2"
_HEAD = struct.Struct("<8sQI4x")
FIRST = _HEAD.size
"""Bytes that say how long the index is."""
ALIGN = 64
_INDEX_LIMIT = 1 << 30


@dataclass(frozen=True)
class Image:
    """A state that is ready to be laid out: nothing is copied yet."""

    head: bytes
    first: int
    """Where the tensors begin; their places count from there."""
    moves: tuple[Moves, ...]
    size: int
    alive: object
    """Keeps alive what is copied from."""

    def copy_into(self, region: Region) -> None:
        """Stage: one copy of everything."""
        region.bytes[: len(self.head)] = self.head
        move(region.tensor, self.first, self.moves)


@dataclass(frozen=True)
class LaidOut:
    """Tensors at the beginning of an image that are laid out already (planning.py)."""

    records: list[Record] = field(default_factory=list)
    text: str = ""
    """The records as JSON."""
    runs: int = 0
    """How many runs of shared memory they have."""
    moves: Moves = field(default_factory=Moves)
    end: int = 0


def plan(trees: Mapping[str, Any]) -> Image:
    """Lay out the trees. Raises UsageError for what cannot be saved."""
    encoder = Encoder()
    encoded = {name: encoder.encode(tree, (name,)) for name, tree in trees.items()}
    return lay_out(encoded, encoder, LaidOut(), trees)


def lay_out(encoded: Mapping[str, Any], encoder: Encoder, leading: LaidOut, alive: object) -> Image:
    """The encoded trees as an image. The first records of the encoder are those of `leading`, whose tensors
    it does not have; no other tensor shares their memory."""
    records = encoder.records[len(leading.records) :]
    sharing.mark(records, encoder.tensors, leading.runs)
    relative = leading.end
    for record, tensor in zip(records, encoder.tensors, strict=True):
        record["at"] = relative
        relative += aligned(tensor.numel() * tensor.element_size())
    told = ", ".join(text for text in (leading.text, as_items(records)) if text)
    objects = json.dumps(encoder.objects)
    body = f'{{"trees": {json.dumps(encoded)}, "tensors": [{told}], "objects": {objects}}}'.encode()
    first = aligned(_HEAD.size + len(body))
    moves = prepare([record["at"] for record in records], encoder.tensors)
    return Image(
        head=_HEAD.pack(MAGIC, len(body), zlib.crc32(body)) + body,
        first=first,
        moves=(leading.moves, moves),
        size=first + relative,
        alive=(alive, encoder.tensors),
    )


def as_items(records: list[Record]) -> str:
    """Records as they stand in the list of an index."""
    return json.dumps(records)[1:-1]


@dataclass(frozen=True)
class ImageIndex:
    """What an image holds, and where its tensors begin."""

    trees: dict[str, Any]
    records: list[Record]
    objects: list[Any]
    first: int


def index_size(head: bytes, size: int) -> int:
    """How many bytes of an image its index takes, by the FIRST of them. Raises CheckpointDamaged."""
    try:
        magic, length, _ = _HEAD.unpack(head)
    except struct.error as error:
        raise CheckpointDamaged(f"the image is not valid ({error})") from error
    if magic != MAGIC or length > min(_INDEX_LIMIT, size - FIRST):
        raise CheckpointDamaged("the image is not valid (its first bytes are not those of an image)")
    return FIRST + int(length)


def read_index(head: bytes, size: int) -> ImageIndex:
    """The index, compared with its sum. Raises CheckpointDamaged."""
    _, length, crc = _HEAD.unpack(head[:FIRST])
    body = head[FIRST : FIRST + length]
    if zlib.crc32(body) != crc:
        raise CheckpointDamaged("the index of an image was changed")
    try:
        found = json.loads(body)
        objects = list(found.get("objects", []))
        index = ImageIndex(dict(found["trees"]), list(found["tensors"]), objects, aligned(FIRST + length))
        for record in index.records:
            at, length = record["at"], _numel(record["shape"]) * DTYPES[record["dtype"]].itemsize
            if at < 0 or at % ALIGN or (length and index.first + at + length > size):
                raise ValueError(f"{record['path']} lies outside")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CheckpointDamaged(f"the image is not valid ({error})") from error
    return index


class Reading:
    """An image in memory, being read."""

    reads_at_once = 1

    def __init__(self, region: Region, size: int, sums: torch.Tensor | None = None) -> None:
        """Reads the index. With `sums`, the whole image is compared with them first.

        Without, the caller has compared its checksum. Raises CheckpointDamaged.
        """
        self._buffer, self.size = region.tensor, size
        if sums is not None and not torch.equal(sum_blocks(region, size), sums):
            raise CheckpointDamaged("an image in memory was changed")
        index = read_index(bytes(region.bytes[: index_size(bytes(region.bytes[:FIRST]), size)]), size)
        self.trees, self.records, self.objects = index.trees, index.records, index.objects
        self._first = index.first

    def view(self, record: Record) -> torch.Tensor:
        """The tensor where it lies; it is overwritten when the buffer is used again."""
        dtype = DTYPES[record["dtype"]]
        at = self._first + record["at"]
        count = _numel(record["shape"])
        if not count:
            return torch.empty(record["shape"], dtype=dtype)
        return self._buffer[at : at + count * dtype.itemsize].view(dtype).view(record["shape"])

    def bytes_of(self, start: int, stop: int) -> torch.Tensor:
        """The bytes there, counted from the first tensor on."""
        return self._buffer[self._first + start : min(self.size, self._first + stop)]

    def copy_out(self, targets: list[tuple[Record, torch.Tensor]]) -> None:
        """Copy tensors to where they are wanted."""
        wanted = [(self._first + int(record["at"]), target) for record, target in targets if target.numel()]
        if wanted:
            inside = [place(self._buffer, at, target) for at, target in wanted]
            with torch.no_grad():
                torch._foreach_copy_([target for _, target in wanted], inside)


def sum_blocks(region: Region, size: int) -> torch.Tensor:
    """The sums of all blocks of an image, whose region is a whole number of blocks."""
    words = region.tensor[: block_count(size) * BLOCK].view(torch.int64)
    return words.view(-1, BLOCK // 8).sum(1)


def _numel(shape: list[int]) -> int:
    count = 1
    for length in shape:
        if not isinstance(length, int) or length < 0:
            raise ValueError("the shape is not valid")
        count *= length
    return count


def aligned(size: int) -> int:
    """The next multiple of ALIGN."""
    return -(-size // ALIGN) * ALIGN
