"""An image copied in one pass from where it is kept into tensors, compared on the way.

Owns that pass, for a slot of the memory tier and for a file in the store. It needs no memory besides: bytes
go straight to where they are wanted and are summed there while the cache still has them, on as many threads
as torch has. The index carries a sum of its own and is compared before anything is planned by it. What a
tensor gets is compared after it was written, so an image that turns out damaged leaves rubbish in tensors:
for a restart, which then takes another state or ends, not for a live rollback, which compares first
(loading.py).
"""

from __future__ import annotations

import ctypes
import itertools
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from torchloom.checkpoint.memory.header import BLOCK
from torchloom.checkpoint.state.crc import combine, crc32
from torchloom.checkpoint.state.image import FIRST, index_size, read_index
from torchloom.checkpoint.state.moving import is_plain
from torchloom.checkpoint.state.new_memory import NewMemory
from torchloom.checkpoint.state.threads import at_once, work_on
from torchloom.checkpoint.state.tree import DTYPES, Record
from torchloom.checkpoint.store.manifest import FileEntry, Manifest
from torchloom.checkpoint.store.storage import Storage
from torchloom.checkpoint.store.verify import Checksum, compare, read_file
from torchloom.errors import CheckpointDamaged

PIECE = 16 << 20
"""What is read from a store at once: as much as a part of an upload (store/objects.py). S3 servers keep the
parts, and half a part takes nearly as long as a whole one."""
INDEX = 1 << 16
"""What is read first: most indexes, without asking twice."""
TAKE = 4
"""Blocks of memory that a thread takes at once: two threads in one large page would both make it."""
SMALL = 1 << 16
"""Below this a copy by Python is quicker than a call of torch."""
WORD = 8
"""Sums of memory are those of its 64-bit words."""


@dataclass(frozen=True)
class Span:
    """A part of the image that is wanted, and its memory."""

    start: int
    stop: int
    memory: memoryview
    flat: torch.Tensor
    """The same memory as a tensor of bytes, which also keeps it alive."""

    def make_pages(self, memory: NewMemory, start: int, stop: int) -> None:
        """Those that the image's bytes from `start` to `stop` go to."""
        begin, end = max(start, self.start) - self.start, min(stop, self.stop) - self.start
        if end - begin >= SMALL:
            memory.make(self.flat.data_ptr(), begin, end)


@dataclass(frozen=True)
class _Part(Span):
    """A part of one block, in whole words."""

    scratch: bool


Kept = dict[tuple[int, int], bytearray]
"""Bytes of an image by where they are in it; empty where nothing was copied."""


class ImageSource(Protocol):
    """Where an image is kept."""

    size: int
    reads_at_once: int
    """How many parts are best read at the same time."""

    def read(self, start: int, length: int) -> bytearray:
        """Some bytes; fewer at the end. The caller compares them."""

    def copy_out(self, spans: list[Span], keep: Kept, memory: NewMemory) -> None:
        """Fill the spans and compare the whole image; also copy what is to be kept, if reading it again takes
        long. Raises CheckpointDamaged or StorageFailed."""


class Streamed:
    """An image that is read once, when it is known where everything goes."""

    def __init__(self, source: ImageSource) -> None:
        """Reads the index. Raises CheckpointDamaged or StorageFailed."""
        self._source, self.size, self.reads_at_once = source, source.size, source.reads_at_once
        head = bytes(source.read(0, min(INDEX, source.size)))
        length = index_size(head[:FIRST], source.size)
        index = read_index(head if length <= len(head) else bytes(source.read(0, length)), source.size)
        self.trees, self.records, self.objects = index.trees, index.records, index.objects
        self._first = index.first
        self._kept: Kept = {}

    def bytes_of(self, start: int, stop: int) -> torch.Tensor:
        """The bytes there, counted from the first tensor on: those that were kept, once, else read again and
        compared with nothing."""
        start, stop = self._first + start, min(self.size, self._first + stop)
        kept = self._kept.pop((start, stop), None)
        return torch.frombuffer(kept or self._source.read(start, stop - start), dtype=torch.uint8)

    def copy_out(
        self,
        targets: list[tuple[Record, torch.Tensor]],
        keep: Sequence[tuple[int, int]] = (),
        memory: NewMemory | None = None,
    ) -> None:
        """Copy tensors to where they are wanted, and compare everything. `keep`: what `bytes_of` will be
        asked for, which need not be read again then. `memory`: what made some of the tensors."""
        spans: list[Span] = []
        later: list[tuple[torch.Tensor, torch.Tensor]] = []
        read: dict[int, torch.Tensor] = {}
        for record, target in targets:
            if not target.numel():
                continue
            at, inside = self._first + int(record["at"]), target
            if at in read:  # wanted twice, as by weights that are no longer tied: read once
                later.append((target, read[at]))
                continue
            if not is_plain(target):  # on a device, or with gaps: it is put together here first
                inside = torch.empty(record["shape"], dtype=DTYPES[record["dtype"]])
                later.append((target, inside))
            read[at] = inside
            spans.append(_span(at, inside))
        kept: Kept = {
            (self._first + start, min(self.size, self._first + stop)): bytearray() for start, stop in keep
        }
        self._source.copy_out(sorted(spans, key=lambda span: span.start), kept, memory or NewMemory())
        self._kept = kept
        with torch.no_grad():
            for target, inside in later:
                target.copy_(inside)


class SlotSource:
    """An image in shared memory. It is read, not mapped: finding the pages of a mapping costs as much as the
    copy itself."""

    reads_at_once = 1

    def __init__(self, path: os.PathLike[str], offset: int, size: int, sums: list[int]) -> None:
        self._path, self._offset, self._sums = path, offset, sums
        self.size = size

    def read(self, start: int, length: int) -> bytearray:
        with self._open() as file:
            return bytearray(os.pread(file.fileno(), min(length, self.size - start), self._offset + start))

    def copy_out(self, spans: list[Span], keep: Kept, memory: NewMemory) -> None:
        takes = itertools.count(step=TAKE)
        wrong: list[int] = []

        def work(_: int) -> None:
            scratch = _span(0, torch.empty(BLOCK, dtype=torch.uint8))
            while (first := next(takes)) < len(self._sums) and not wrong:
                for number in range(first, min(first + TAKE, len(self._sums))):
                    near = _near(number * BLOCK, (number + 1) * BLOCK, spans)
                    if not self._block(file.fileno(), number, near, scratch, memory):
                        wrong.append(number)
                        return

        with self._open() as file:
            work_on(min(at_once(), len(self._sums)), work)
        if wrong:
            raise CheckpointDamaged("an image in memory was changed")

    def _block(
        self, descriptor: int, number: int, near: list[Span], scratch: Span, memory: NewMemory
    ) -> bool:
        """Fill a block; False if it is not what was sealed."""
        start = number * BLOCK
        for span in near:
            span.make_pages(memory, start, start + BLOCK)
        parts = list(_parts(start, near, scratch))
        _fill(descriptor, [part.memory for part in parts], self._offset + start)
        total = sum(int(part.flat.view(torch.int64).sum()) for part in parts)
        if (total - self._sums[number]) % (1 << 64):
            return False
        for part in parts:
            if part.scratch:
                _deal(part, near)
        return True

    def _open(self) -> Any:
        try:
            return open(self._path, "rb", buffering=0, opener=_no_links)
        except OSError as error:
            raise CheckpointDamaged("an image in memory is gone") from error


class StoreSource:
    """An image in a file of a checkpoint."""

    def __init__(self, storage: Storage, manifest: Manifest, entry: FileEntry) -> None:
        self._storage, self._manifest, self._entry = storage, manifest, entry
        self.size, self.reads_at_once = entry.size, storage.reads_at_once

    def read(self, start: int, length: int) -> bytearray:
        found = bytearray(min(length, self.size - start))
        read_file(self._storage, self._manifest, self._entry, start, [memoryview(found)])
        return found

    def copy_out(self, spans: list[Span], keep: Kept, memory: NewMemory) -> None:
        pieces = range(0, self.size, PIECE)
        keep.update({(start, stop): bytearray(stop - start) for start, stop in keep})
        sums: list[tuple[int, int]] = [(0, 0)] * len(pieces)
        numbers = itertools.count()
        given_up = False

        def work(_: int) -> None:
            nonlocal given_up
            try:
                while (number := next(numbers)) < len(pieces) and not given_up:
                    start = pieces[number]
                    stop = min(self.size, start + PIECE)
                    buffers = list(_covering(start, stop, spans))
                    for span in _near(start, stop, spans):
                        span.make_pages(memory, start, stop)
                    length = read_file(self._storage, self._manifest, self._entry, start, buffers)
                    crc = 0
                    for buffer in buffers:
                        crc = crc32(buffer, crc)
                    sums[number] = crc, length
                    _note(start, buffers, keep)
            finally:
                given_up = given_up or number < len(pieces)

        work_on(max(1, min(self.reads_at_once, len(pieces))), work)
        total, size = 0, 0
        for crc, length in sums:
            total, size = combine(total, crc, length), size + length
        compare(self._manifest, self._entry, Checksum(total, size))


def _span(start: int, tensor: torch.Tensor) -> Span:
    flat = tensor.detach().view(-1).view(torch.uint8)
    length = flat.numel()
    memory = memoryview((ctypes.c_char * length).from_address(flat.data_ptr())).cast("B")
    return Span(start, start + length, memory, flat)


def _fill(descriptor: int, buffers: list[memoryview], start: int) -> None:
    length = sum(len(buffer) for buffer in buffers)
    if os.preadv(descriptor, buffers, start) != length:  # of memory, it is all there or was cut off
        raise CheckpointDamaged("an image in memory was cut short")


def _parts(start: int, spans: list[Span], scratch: Span) -> Iterator[_Part]:
    """A block cut into what goes straight to where it is wanted and what goes through the scratch memory:
    small tensors, and ends that are no whole words."""

    def through(begin: int, end: int) -> _Part:
        inside = slice(begin - start, end - start)
        return _Part(begin, end, scratch.memory[inside], scratch.flat[inside], scratch=True)

    at, stop = start, start + BLOCK
    for span in spans:
        if span.start >= stop:
            break
        begin, end = max(at, span.start), min(stop, span.stop) // WORD * WORD
        if end - begin < SMALL or span.flat.storage_offset() % WORD:
            continue
        if begin > at:
            yield through(at, begin)
        inside = slice(begin - span.start, end - span.start)
        yield _Part(begin, end, span.memory[inside], span.flat[inside], scratch=False)
        at = end
    if at < stop:
        yield through(at, stop)


def _deal(part: _Part, spans: list[Span]) -> None:
    """Copy what went through the scratch memory, and was compared, to the spans that lie there."""
    for span in spans:
        if span.start >= part.stop:
            return
        begin, end = max(part.start, span.start), min(part.stop, span.stop)
        if begin >= end:
            continue
        here, there = slice(begin - span.start, end - span.start), slice(begin - part.start, end - part.start)
        if end - begin < SMALL:
            span.memory[here] = part.memory[there]
        else:
            span.flat[here].copy_(part.flat[there])


def _covering(start: int, stop: int, spans: list[Span]) -> Iterator[memoryview]:
    """Buffers that take the bytes from start to stop, one after another; unwanted bytes are discarded."""
    at = start
    for span in _near(start, stop, spans):
        if span.stop <= at:
            continue
        if span.start > at:
            yield memoryview(bytearray(span.start - at))
            at = span.start
        end = min(stop, span.stop)
        yield span.memory[at - span.start : end - span.start]
        at = end
    if at < stop:
        yield memoryview(bytearray(stop - at))


def _near(start: int, stop: int, spans: list[Span]) -> list[Span]:
    """Those that have bytes from start to stop, and perhaps one before."""
    first = max(0, bisect_right(spans, start, key=lambda span: span.start) - 1)
    return spans[first : bisect_left(spans, stop, key=lambda span: span.start)]


def _note(at: int, buffers: list[memoryview], keep: Kept) -> None:
    """Copy what is to be kept out of buffers that hold the bytes from `at` on."""
    for buffer in buffers:
        for (start, stop), kept in keep.items():
            begin, end = max(at, start), min(at + len(buffer), stop)
            if begin < end:
                kept[begin - start : end - start] = buffer[begin - at : end - at]
        at += len(buffer)


def _no_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
