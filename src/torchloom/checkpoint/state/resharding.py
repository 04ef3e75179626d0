"""A tensor that lies elsewhere now: put together from the shards of all ranks, or compared with them.

Owns the arithmetic of boxes: which part of a chunk lies in which part of a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

Slices = tuple[slice, ...]


@dataclass
class Box:
    """A part of a tensor, and which of its elements have been looked at."""

    path: str
    target: torch.Tensor
    offset: tuple[int, ...]
    seen: dict[tuple[int, ...], int] = field(default_factory=dict)

    def take(self, chunk: torch.Tensor, offset: tuple[int, ...]) -> None:
        """Copy the part of the chunk that lies in this box."""
        common = self._common(chunk, offset)
        if common is not None:
            here, there = common
            self.target[here].copy_(chunk[there])

    def equals(self, chunk: torch.Tensor, offset: tuple[int, ...]) -> bool:
        """Is the part of the chunk that lies in this box the same there, to the bit?"""
        common = self._common(chunk, offset)
        if common is None:
            return True
        here, there = common
        mine, its = self.target[here].contiguous().cpu(), chunk[there].contiguous()
        return bool(torch.equal(mine.reshape(-1).view(torch.uint8), its.reshape(-1).view(torch.uint8)))

    @property
    def whole(self) -> bool:
        """Every element has been looked at."""
        return sum(self.seen.values()) >= int(self.target.numel())

    def _common(self, chunk: torch.Tensor, offset: tuple[int, ...]) -> tuple[Slices, Slices] | None:
        here, there, starts, count = [], [], [], 1
        for mine, size, its, length in zip(self.offset, self.target.shape, offset, chunk.shape, strict=True):
            start, stop = max(mine, its), min(mine + size, its + length)
            if start >= stop:
                return None
            here.append(slice(start - mine, stop - mine))
            there.append(slice(start - its, stop - its))
            starts.append(start)
            count *= stop - start
        self.seen[tuple(starts)] = count
        return tuple(here), tuple(there)
