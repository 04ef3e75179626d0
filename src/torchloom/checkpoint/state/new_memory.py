"""Memory of tensors that a restore makes: in mappings of their own, whose pages are made many at a time.

Owns the choice between small and large pages. Large ones are four times as quick to make where the kernel has
them at hand. Where it has to put them together first, or where a hypervisor has taken free ones back (free
page reporting), one takes longer than all of its small ones: once that has cost a few milliseconds, the rest
comes in small ones. Only speed depends on this: a page not made here is made when it is first written.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch

OWN_MAPPING = 1 << 18
"""From so many bytes on a new tensor has a mapping of its own: neighbours have large pages together."""
CHUNK = 2 << 20
"""What is made at once: a large page."""
SMALL_S, PATIENCE_S = 0.0008, 0.004
"""A chunk of small pages takes about so long; what may be lost by large ones that take longer, until the rest
comes in small ones."""
_LARGE, _SMALL, _MAKE = 14, 15, 23  # MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_POPULATE_WRITE (Linux 5.14)


class NewMemory:
    """Makes the tensors of one restore, and their pages when several threads are about to fill them."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        """`clock`: the CPU time of the thread, which may also have to wait for a core."""
        self._clock = clock
        self._sizes: dict[int, int] = {}
        self._locks: dict[tuple[int, int], threading.Lock] = {}
        self._made: set[tuple[int, int]] = set()
        self._lost_s = 0.0
        self._libc = ctypes.CDLL(None)  # gives the interpreter free, unlike mmap.madvise
        self._works = hasattr(self._libc, "madvise")

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A new tensor that is not filled yet.

        The allocator writes a note before each tensor, and the large page around it then comes in small ones:
        half of the memory where tensors have 4 MB. Here nothing is touched before the kernel knows. As of a
        tensor that torch.load has read, the storage cannot be resized; the mapping goes when it does.
        """
        size = math.prod(shape) * dtype.itemsize
        if size < OWN_MAPPING:
            return torch.empty(shape, dtype=dtype)
        try:
            mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:  # too many mappings: the allocator needs fewer
            return torch.empty(shape, dtype=dtype)
        with suppress(OSError):
            mapping.madvise(_LARGE)
        storage = torch.frombuffer(mapping, dtype=torch.uint8).untyped_storage()
        made: torch.Tensor = torch.empty(0, dtype=dtype).set_(storage, 0, torch.Size(shape))
        self._sizes[made.data_ptr()] = size
        return made

    def make(self, tensor: int, start: int, stop: int) -> None:
        """Make the pages of some bytes of the tensor at this address, and what else is in their chunks.

        Two threads at the ends of one chunk would both make a large page of it: one waits for the other.
        """
        size = self._sizes.get(tensor)
        if size is None or not self._works:
            return
        for number in range((tensor + start) // CHUNK, -(-(tensor + stop) // CHUNK)):
            key = tensor, number
            if key not in self._made:
                with self._locks.setdefault(key, threading.Lock()):
                    if key not in self._made:
                        self._chunk(max(tensor, number * CHUNK), min(tensor + size, (number + 1) * CHUNK))
                        self._made.add(key)

    def _chunk(self, start: int, stop: int) -> None:
        began = self._clock()
        self._works = self._advise(start, stop, _MAKE)
        took_s = self._clock() - began
        if self._lost_s > PATIENCE_S:
            return
        self._lost_s = max(0.0, self._lost_s + took_s - SMALL_S * (stop - start) / CHUNK)
        if self._lost_s > PATIENCE_S:
            for first, last in self._ranges():
                self._advise(first, last, _SMALL)

    def _ranges(self) -> list[tuple[int, int]]:
        """Where the tensors are; neighbours are one range, because each call waits for the other threads."""
        found: list[tuple[int, int]] = []
        for start in sorted(self._sizes):
            stop = _page(start + self._sizes[start])
            if found and found[-1][1] == start:
                start = found.pop()[0]
            found.append((start, stop))
        return found

    def _advise(self, start: int, stop: int, advice: int) -> bool:
        length = ctypes.c_size_t(_page(stop) - start)
        return not self._libc.madvise(ctypes.c_void_p(start), length, advice)


def _page(address: int) -> int:
    """Where the next page begins."""
    return -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
