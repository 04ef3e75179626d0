"""The one copy that the training loop waits for: out of tensors into memory that is kept.

Owns how it is made. Large tensors are cut into pieces that some threads take one after another: on a busy
host one that is held up leaves its pieces to the others, where torch's threads wait for the slowest. What is
larger than a cache is copied past it where that was compiled (native/), which takes two thirds of the time.
Where a tensor goes is an address: to make a view of the memory for each takes as long as to encode it. What
is on a device, has gaps or is conjugated is copied by torch.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from torchloom.checkpoint.native import copy_past_cache
from torchloom.checkpoint.state.threads import at_once, work_on

SMALL = 1 << 16
"""What is smaller is copied at once: to hand it to a thread takes longer."""
PIECE = 4 << 20
"""What a thread takes at once."""
INLINE = 8 << 20
"""Bytes that one thread copies before others have begun."""
PAST_CACHE = 64 << 20
"""From so many bytes on a copy leaves the cache as it is."""
_OWN = (torch.Tensor, torch.nn.Parameter)
"""Tensors that are what they look like; of a subclass only torch knows where its values are."""


_copy = ctypes.PyDLL(None).memmove  # keeps the interpreter: to give it free for so few bytes takes longer
_copy.argtypes, _copy.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t], ctypes.c_void_p


def is_plain(tensor: torch.Tensor) -> bool:
    """Is it one run of this process's memory that holds just its values?"""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg())
    )


def place(memory: torch.Tensor, at: int, like: torch.Tensor) -> torch.Tensor:
    """The bytes of `memory` from `at` on as a tensor of the same kind as `like`."""
    return memory[at : at + like.numel() * like.element_size()].view(like.dtype).view(like.shape)


@dataclass(frozen=True)
class Moves:
    """Copies that are ready to be made: where each goes, counted from somewhere, and what it takes from."""

    small: list[tuple[int, int, int]] = field(default_factory=list)
    """(place, address, length) of what is copied at once."""
    pieces: list[tuple[int, int, int]] = field(default_factory=list)
    others: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    """What torch copies."""
    end: int = 0
    """No place reaches beyond."""


def prepare(places: Sequence[int], sources: Sequence[torch.Tensor]) -> Moves:
    """Whoever makes these copies keeps the sources alive until then. Places do not overlap."""
    small: list[tuple[int, int, int]] = []
    pieces: list[tuple[int, int, int]] = []
    others: list[tuple[int, torch.Tensor]] = []
    end = 0
    for at, source in zip(places, sources, strict=True):
        length = source.numel() * source.element_size()
        if not length:
            continue
        if at < 0:
            raise ValueError(f"{length} bytes at {at} do not fit")
        end = max(end, at + length)
        if is_for_torch(source):
            others.append((at, source))
        elif length < SMALL:
            small.append((at, source.data_ptr(), length))
        else:
            out_of = source.data_ptr()
            pieces += [
                (at + start, out_of + start, min(PIECE, length - start)) for start in range(0, length, PIECE)
            ]
    return Moves(small, pieces, others, end)


def is_for_torch(source: torch.Tensor) -> bool:
    """Does only torch know how to copy it?"""
    return type(source) not in _OWN or not is_plain(source)


def move(memory: torch.Tensor, base: int, moves: Sequence[Moves]) -> None:
    """Make these copies into `memory`, which is a run of bytes; places count from `base`."""
    room = memory.numel() - base
    for each in moves:
        if each.end > room:
            raise ValueError(f"{each.end} bytes do not fit into {room}")
    first = memory.data_ptr() + base
    for each in moves:
        for at, source, length in each.small:
            _copy(first + at, source, length)
    others = [one for each in moves for one in each.others]
    if others:
        with torch.no_grad():
            torch._foreach_copy_(
                [place(memory, base + at, source) for at, source in others], [source for _, source in others]
            )
    pieces = [piece for each in moves for piece in each.pieces]
    total = sum(length for _, _, length in pieces)
    past_cache = copy_past_cache() if total >= PAST_CACHE else None
    copy = past_cache or ctypes.memmove
    numbers = itertools.count()

    def work(_: int) -> None:
        while (number := next(numbers)) < len(pieces):
            at, source, length = pieces[number]
            copy(first + at, source, length)

    threads = min(at_once(), len(pieces))
    if threads < 2 or total <= INLINE:
        work(0)
    else:
        work_on(threads, work)
