"""An image: the state of a rank as one run of bytes, the same in memory, on disk and in an object store.

    0      magic, length of the index
    16     index: JSON with the trees and a record of every tensor
    …      tensors, each at a multiple of ALIGN

Owns that layout, the copy into it (staging) and the copy out of it. Both go block by block when sums are
wanted, so that a block is summed while it is in the cache: a second pass over the memory would double the
cost.

A block's sum is that of its 64-bit words. It finds torn and flipped memory for a tenth of the price of a
copy, which is what the memory tier needs; files carry CRC-32 besides (verify.py).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
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
"""Fits into the second-level cache of anything that trains models."""
_INDEX_LIMIT = 1 << 30


@dataclass(frozen=True)
class Image:
    """A state that is ready to be laid out: nothing is copied yet."""

    head: bytes
    tensors: list[torch.Tensor]
    places: list[int]
    size: int

    def copy_into(self, region: Region, sums: torch.Tensor | None = None) -> None:
        """Stage: copy everything, and sum the blocks if `sums` is given."""
        region.bytes[: len(self.head)] = self.head
        with torch.no_grad():
            if sums is None:
                _copy_whole(region.tensor, self.tensors, self.places, into=True)
            else:
                for block in _blocks(region.tensor, self.tensors, self.places, self.size, into=True):
                    sums[block] = _sum(region.tensor, block)


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
        """Reads the index. With `sums`, its blocks are compared before it is believed."""
        self._buffer, self._size, self._sums = region.tensor, size, sums
        try:
            magic, length = _HEAD.unpack(region.bytes[: _HEAD.size])
            if magic != MAGIC or length > min(_INDEX_LIMIT, size - _HEAD.size):
                raise ValueError("it does not begin as an image does")
            if sums is not None:
                for block in range(block_count(_HEAD.size + length)):
                    if _sum(self._buffer, block) != sums[block]:
                        raise ValueError(f"block {block} was changed")
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
        """Copy tensors to where they are wanted, comparing the sums of **all** blocks on the way if known.

        Raises CheckpointDamaged when a sum is wrong: what was copied by then means nothing.
        """
        targets = sorted(targets, key=lambda target: int(target[0]["at"]))
        outside = [target for _, target in targets]
        places = [self._first + int(record["at"]) for record, _ in targets]
        with torch.no_grad():
            if self._sums is None:
                _copy_whole(self._buffer, outside, places, into=False)
                return
            for block in _blocks(self._buffer, outside, places, self._size, into=False, before=self._sums):
                raise CheckpointDamaged(f"block {block} of an image in memory was changed")

    def _check(self, record: Record) -> None:
        size = _numel(record["shape"]) * DTYPES[record["dtype"]].itemsize
        at = self._first + record["at"]
        if record["at"] < 0 or size < 0 or record["at"] % ALIGN or at + size > max(self._size, at):
            raise ValueError(f"{record['path']} lies outside")


def block_count(size: int) -> int:
    return -(-size // BLOCK)


def _blocks(
    buffer: torch.Tensor,
    outside: list[torch.Tensor],
    places: list[int],
    size: int,
    *,
    into: bool,
    before: torch.Tensor | None = None,
) -> Iterator[int]:
    """Copy block by block. Going in, yields each block that is full; going out, each whose sum is wrong."""
    pieces = _Pieces(outside, places)
    wrong: list[torch.Tensor] = []
    for block in range(block_count(size)):
        start = block * BLOCK
        stop = min(start + BLOCK, size)
        if before is not None:
            wrong.append(_sum(buffer, block) != before[block])
        for at, outer in pieces.up_to(stop):
            inner = buffer[at : at + outer.numel() * outer.element_size()]
            if outer.dtype is not torch.uint8:
                inner = inner.view(outer.dtype)
            inner = inner.view(outer.shape)
            if into:
                inner.copy_(outer)
            else:
                outer.copy_(inner)
        if into:
            yield block
    if wrong:
        yield from torch.stack(wrong).nonzero().flatten().tolist()


class _Pieces:
    """The memory outside, cut at block boundaries where it is one contiguous run on the host."""

    def __init__(self, outside: list[torch.Tensor], places: list[int]) -> None:
        self._queue = [
            (at, tensor.view(-1).view(torch.uint8) if _is_run(tensor) else tensor)
            for at, tensor in zip(places, outside, strict=True)
            if tensor.numel()
        ]
        self._next = 0

    def up_to(self, stop: int) -> Iterator[tuple[int, torch.Tensor]]:
        while self._next < len(self._queue):
            at, tensor = self._queue[self._next]
            if at >= stop:
                return
            if tensor.dtype is torch.uint8 and tensor.dim() == 1 and at + tensor.numel() > stop:
                self._queue[self._next] = (stop, tensor[stop - at :])
                yield at, tensor[: stop - at]
                return
            self._next += 1
            yield at, tensor


def _copy_whole(buffer: torch.Tensor, outside: list[torch.Tensor], places: list[int], *, into: bool) -> None:
    inner: list[torch.Tensor] = []
    outer = [tensor for tensor in outside if tensor.numel()]
    for at, tensor in zip(places, outside, strict=True):
        if tensor.numel():
            piece = buffer[at : at + tensor.numel() * tensor.element_size()]
            inner.append(piece.view(tensor.dtype).view(tensor.shape))
    if outer:
        torch._foreach_copy_(inner, outer) if into else torch._foreach_copy_(outer, inner)


def _sum(buffer: torch.Tensor, block: int) -> torch.Tensor:
    return buffer[block * BLOCK : (block + 1) * BLOCK].view(torch.int64).sum()


def _is_run(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_complex()


def _numel(shape: list[int]) -> int:
    count = 1
    for length in shape:
        if not isinstance(length, int) or length < 0:
            raise ValueError("a shape makes no sense")
        count *= length
    return count


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
