"""An image: the state of a rank as one run of bytes, the same in memory, on disk and in an object store.

    0      magic, length of the index
    16     index: JSON with the trees and a record of every tensor
    …      tensors, each at a multiple of ALIGN

Owns that layout, the copy into it (staging), the copy out of it, and sums by which changed memory is found.
The sum of a block is that of its 64-bit words: a tenth of the price of CRC-32, which is what the memory
tier can afford; files carry a CRC-32 besides (verify.py).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchloom.checkpoint.region import Region
from torchloom.checkpoint.tree import DTYPES, Encoder, Record
from torchloom.errors import CheckpointDamaged

MAGIC = b"LOOMIMG1"
_HEAD = struct.Struct("<8sQ")
ALIGN = 64
BLOCK = 1 << 20
"""What one sum is of."""
_INDEX_LIMIT = 1 << 30


@dataclass(frozen=True)
class Image:
    """A state that is ready to be laid out: nothing is copied yet."""

    head: bytes
    tensors: list[torch.Tensor]
    places: list[int]
    size: int

    def copy_into(self, region: Region) -> None:
        """Stage: one copy of everything."""
        region.bytes[: len(self.head)] = self.head
        with torch.no_grad():
            _copy(region.tensor, self.tensors, self.places, into=True)


def plan(trees: Mapping[str, Any]) -> Image:
    """Lay out the trees. Raises UsageError for what cannot be saved."""
    encoder = Encoder()
    encoded = {name: encoder.encode(tree, name) for name, tree in trees.items()}
    relative = 0
    for record, tensor in zip(encoder.records, encoder.tensors, strict=True):
        record["at"] = relative
        relative += _aligned(tensor.numel() * tensor.element_size())
    body = json.dumps({"trees": encoded, "tensors": encoder.records}).encode()
    first = _aligned(_HEAD.size + len(body))
    return Image(
        head=_HEAD.pack(MAGIC, len(body)) + body,
        tensors=encoder.tensors,
        places=[first + record["at"] for record in encoder.records],
        size=first + relative,
    )


class Reading:
    """An image in memory, being read."""

    def __init__(self, region: Region, size: int, sums: torch.Tensor | None = None) -> None:
        """Reads the index. With `sums`, the whole image is compared with them first.

        Without, the caller has compared its checksum. Raises CheckpointDamaged.
        """
        self._buffer, self._size = region.tensor, size
        if sums is not None and not torch.equal(sum_blocks(region, size), sums):
            raise CheckpointDamaged("an image in memory was changed")
        try:
            magic, length = _HEAD.unpack(region.bytes[: _HEAD.size])
            if magic != MAGIC or length > min(_INDEX_LIMIT, size - _HEAD.size):
                raise ValueError("it does not begin as an image does")
            index = json.loads(bytes(region.bytes[_HEAD.size : _HEAD.size + length]))
            self.trees: dict[str, Any] = dict(index["trees"])
            self.records: list[Record] = list(index["tensors"])
            self._first = _aligned(_HEAD.size + length)
            for record in self.records:
                self._check(record)
        except (ValueError, KeyError, TypeError, RecursionError, struct.error) as error:
            raise CheckpointDamaged(f"an image makes no sense ({error})") from error

    def view(self, record: Record) -> torch.Tensor:
        """The tensor where it lies; it is overwritten when the buffer is used again."""
        dtype = DTYPES[record["dtype"]]
        at = self._first + record["at"]
        count = _numel(record["shape"])
        if not count:
            return torch.empty(record["shape"], dtype=dtype)
        return self._buffer[at : at + count * dtype.itemsize].view(dtype).view(record["shape"])

    def copy_out(self, targets: list[tuple[Record, torch.Tensor]]) -> None:
        """Copy tensors to where they are wanted."""
        places = [self._first + int(record["at"]) for record, _ in targets]
        with torch.no_grad():
            _copy(self._buffer, [target for _, target in targets], places, into=False)

    def _check(self, record: Record) -> None:
        size = _numel(record["shape"]) * DTYPES[record["dtype"]].itemsize
        at = self._first + record["at"]
        if record["at"] < 0 or size < 0 or record["at"] % ALIGN or at + size > max(self._size, at):
            raise ValueError(f"{record['path']} lies outside")


def block_count(size: int) -> int:
    return -(-size // BLOCK)


def sum_blocks(region: Region, size: int) -> torch.Tensor:
    """The sums of all blocks of an image, whose region is a whole number of blocks."""
    words = region.tensor[: block_count(size) * BLOCK].view(torch.int64)
    return words.view(-1, BLOCK // 8).sum(1)


def _copy(buffer: torch.Tensor, outside: list[torch.Tensor], places: list[int], *, into: bool) -> None:
    inner: list[torch.Tensor] = []
    outer = [tensor for tensor in outside if tensor.numel()]
    for at, tensor in zip(places, outside, strict=True):
        if tensor.numel():
            piece = buffer[at : at + tensor.numel() * tensor.element_size()]
            inner.append(piece.view(tensor.dtype).view(tensor.shape))
    if outer and into:
        torch._foreach_copy_(inner, outer)
    elif outer:
        torch._foreach_copy_(outer, inner)


def _numel(shape: list[int]) -> int:
    count = 1
    for length in shape:
        if not isinstance(length, int) or length < 0:
            raise ValueError("a shape makes no sense")
        count *= length
    return count


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
