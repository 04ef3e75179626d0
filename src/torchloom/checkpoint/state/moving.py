"""The one copy that the training loop waits for: out of tensors into memory that is kept.

Owns how it is made. Large tensors are cut into pieces that some threads take one after another: on a busy
host one that is held up leaves its pieces to the others, where torch's threads wait for the slowest. On a
quiet host both take about as long. What is small, on a device, has gaps or is to be converted is copied by
torch.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence

import torch

from torchloom.checkpoint.state.threads import at_once, work_on

SMALL = 1 << 16
"""Below this torch is as quick."""
PIECE = 4 << 20
"""What a thread takes at once."""
INLINE = 8 << 20
"""Bytes that one thread copies before others have begun."""
_OWN = (torch.Tensor, torch.nn.Parameter)
"""Tensors that are what they look like; of a subclass only torch knows where its values are."""


def is_plain(tensor: torch.Tensor) -> bool:
    """Is it one run of this process's memory that holds just its values?"""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg())
    )


def move(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each source to its target, which is plain and has its dtype and shape; they do not overlap."""
    pieces: list[tuple[int, int, int]] = []
    others: list[tuple[torch.Tensor, torch.Tensor]] = []
    size = 0
    for target, source in zip(targets, sources, strict=True):
        length = source.numel() * source.element_size()
        if length < SMALL or type(source) not in _OWN or not is_plain(source):
            others.append((target, source))
            continue
        to, out_of = target.data_ptr(), source.data_ptr()
        pieces += [(to + at, out_of + at, min(PIECE, length - at)) for at in range(0, length, PIECE)]
        size += length
    if others:
        torch._foreach_copy_([target for target, _ in others], [source for _, source in others])
    numbers = itertools.count()

    def work(_: int) -> None:
        while (number := next(numbers)) < len(pieces):
            ctypes.memmove(*pieces[number])

    if size <= INLINE:
        work(0)
    else:
        work_on(min(at_once(), len(pieces)), work)
