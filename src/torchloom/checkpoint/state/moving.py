"""The one copy that the training loop waits for: out of tensors into memory that is kept.

Owns how it is made. Large tensors are cut into pieces that some threads take one after another: on a busy
host one that is held up leaves its pieces to the others, where torch's threads wait for the slowest. On a
quiet host both take about as long. Where a tensor goes is an address: to make a view of the memory for each
takes as long as to encode it. What is on a device, has gaps or is conjugated is copied by torch.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence

import torch

from torchloom.checkpoint.state.threads import at_once, work_on

SMALL = 1 << 16
"""What is smaller is copied at once: to hand it to a thread takes longer."""
PIECE = 4 << 20
"""What a thread takes at once."""
INLINE = 8 << 20
"""Bytes that one thread copies before others have begun."""
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


def move(memory: torch.Tensor, places: Sequence[int], sources: Sequence[torch.Tensor]) -> None:
    """Copy each source to its place in `memory`, which is a run of bytes; places do not overlap."""
    pieces: list[tuple[int, int, int]] = []
    others: list[tuple[int, torch.Tensor]] = []
    first, size, room = memory.data_ptr(), 0, memory.numel()
    for at, source in zip(places, sources, strict=True):
        length = source.numel() * source.element_size()
        if not length:
            continue
        if at < 0 or at + length > room:
            raise ValueError(f"{length} bytes at {at} do not fit into {room}")
        if type(source) not in _OWN or not is_plain(source):
            others.append((at, source))
        elif length < SMALL:
            _copy(first + at, source.data_ptr(), length)
        else:
            out_of = source.data_ptr()
            pieces += [
                (first + at + start, out_of + start, min(PIECE, length - start))
                for start in range(0, length, PIECE)
            ]
            size += length
    if others:
        with torch.no_grad():
            torch._foreach_copy_([place(memory, *one) for one in others], [source for _, source in others])
    numbers = itertools.count()

    def work(_: int) -> None:
        while (number := next(numbers)) < len(pieces):
            ctypes.memmove(*pieces[number])

    if size <= INLINE:
        work(0)
    else:
        work_on(min(at_once(), len(pieces)), work)
