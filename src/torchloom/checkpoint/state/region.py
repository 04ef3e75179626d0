"""Memory that is kept: mapped once, its pages made at once, used for one save after another.

Owns mappings. A copy into pages that are there takes a quarter of the time of one into fresh pages, so a
region is made once and grows only when the state does. It is anonymous memory, or a file in shared memory
that outlives the process (memory.py says what is in it). Making one may happen beside the training: whatever
takes long there gives the interpreter free (`mmap.madvise` does not, so pages are touched by torch).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch

_HUGE = 14  # MADV_HUGEPAGE
_LARGE = 2 << 20


class Region:
    """A run of writable memory, as bytes and as a tensor of bytes."""

    def __init__(self, mapping: mmap.mmap, start: int = 0, stop: int | None = None) -> None:
        self._mapping = mapping
        self.bytes = memoryview(mapping)[start:stop]
        self.tensor = torch.frombuffer(self.bytes, dtype=torch.uint8)

    @property
    def size(self) -> int:
        return len(self.bytes)

    def part(self, start: int, stop: int) -> Region:
        return Region(self._mapping, start, stop)


def anonymous(size: int) -> Region:
    """Memory of this process alone."""
    mapping = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        mapping.madvise(_HUGE)
    region = Region(mapping)
    region.tensor[:: mmap.PAGESIZE].zero_()
    return region


def large_pages(tensors: Iterable[torch.Tensor]) -> None:
    """Ask that memory of tensors that were not written yet comes in large pages, which are quicker to make.

    A hint to the kernel that changes nothing else; torch does the same under THP_MEM_ALLOC_ENABLE.
    """
    ranges: list[tuple[int, int]] = []
    for tensor in sorted((t for t in tensors if t.device.type == "cpu"), key=lambda t: t.data_ptr()):
        start, stop = tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()
        if ranges and start - ranges[-1][1] < 2 * mmap.PAGESIZE:  # its neighbour: large pages may span both
            ranges[-1] = ranges[-1][0], stop
        else:
            ranges.append((start, stop))
    with suppress(AttributeError, OSError):
        advise = ctypes.CDLL(None).madvise
        for start, stop in ranges:
            start, stop = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
            if stop - start >= _LARGE:
                advise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), _HUGE)


def file_backed(path: Path, size: int) -> Region:
    """A file of ours, made or grown to `size`, with all its pages. Raises OSError, ENOSPC above all.

    The pages are asked for before they are mapped: without room, touching one would be a SIGBUS. What is in
    the file stays: pages are found by reading them.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(descriptor).st_size < size:
            os.posix_fallocate(descriptor, 0, size)
        mapping = mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
    region = Region(mapping)
    region.tensor[:: mmap.PAGESIZE].sum()
    return region


def existing(path: Path) -> Region:
    """A file as somebody left it. Raises OSError, or ValueError for an empty one."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        mapping = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)
    return Region(mapping)
