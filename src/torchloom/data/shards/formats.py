"""Opening a shard that is a local file: line n of text, JSONL or token windows, by number.

The file is mapped, not read, and only the ends of lines are kept (8 bytes a line), so data workers that read
the same shard share its pages. Knows nothing of caches, ranks or order.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from torchloom.data.shards.index import Shard, ShardIndex
from torchloom.errors import DataDamaged, UsageError

_SCAN_BYTES = 8 << 20


def windows(shard: Shard, token_bytes: int, window: int, stride: int) -> int:
    """How many windows of tokens a shard holds; tokens after the last whole one are left out."""
    return max(0, (shard.bytes // token_bytes - window) // stride + 1)


class Mapped:
    """A file mapped into memory, with the length its index promises."""

    def __init__(self, path: Path, shard: Shard) -> None:
        self.name = shard.name
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != shard.bytes:
                raise DataDamaged(
                    f"{shard.name} has {size:,} bytes and its index says {shard.bytes:,}",
                    hint="write the index again if it changed on purpose",
                )
            # A private writable mapping, because torch refuses to look into read-only memory.
            self.memory: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if size else b""


class Lines(Mapped):
    """Text: a line ends with a newline, which the last may lack; a carriage return before it goes too."""

    def __init__(self, path: Path, shard: Shard) -> None:
        super().__init__(path, shard)
        self._starts = array("q", [0])
        for start in range(0, shard.bytes, _SCAN_BYTES):
            count = min(_SCAN_BYTES, shard.bytes - start)
            chunk = torch.frombuffer(self.memory, dtype=torch.uint8, offset=start, count=count)
            self._starts.extend(((chunk == 10).nonzero().flatten() + (start + 1)).tolist())
        if shard.bytes and self._starts[-1] != shard.bytes:
            self._starts.append(shard.bytes + 1)  # as if the last newline were there
        if len(self._starts) - 1 != shard.lines:
            raise DataDamaged(
                f"{shard.name} has {len(self._starts) - 1:,} lines and its index says {shard.lines:,}",
                hint="write the index again if it changed on purpose",
            )

    def at(self, numbers: Sequence[int]) -> list[Any]:
        memory, starts = self.memory, self._starts
        lines = [memory[starts[n] : starts[n + 1] - 1].decode(errors="replace") for n in numbers]
        return [line[:-1] if line.endswith("\r") else line for line in lines]


class JsonLines(Lines):
    """One JSON document a line."""

    def at(self, numbers: Sequence[int]) -> list[Any]:
        loads, found = json.loads, []
        lines = super().at(numbers)
        try:
            for line in lines:
                found.append(loads(line))
        except (ValueError, RecursionError):
            raise DataDamaged(f"{self.name}, line {numbers[len(found)] + 1}, is not JSON") from None
        return found


class TokenFormat(Mapped):
    """Little-endian numbers of 2 or 4 bytes; line n is the window of tokens that begins at n × stride."""

    def __init__(self, path: Path, shard: Shard, token_bytes: int, window: int, stride: int) -> None:
        if sys.byteorder != "little":
            raise UsageError("token shards are little-endian and this machine is not")
        super().__init__(path, shard)
        self._type = torch.uint16 if token_bytes == 2 else torch.uint32
        self._bytes, self._window, self._stride = token_bytes, window, stride

    def at(self, numbers: Sequence[int]) -> list[Any]:
        memory, step = self.memory, self._stride * self._bytes
        views = [
            torch.frombuffer(memory, dtype=self._type, count=self._window, offset=number * step)
            for number in numbers
        ]
        return [view.to(torch.int64) for view in views]


def open_shard(path: Path, index: ShardIndex, shard: Shard, window: int, stride: int) -> Lines | TokenFormat:
    """The shard, ready to be asked for lines by number."""
    if index.format == "tokens":
        return TokenFormat(path, shard, index.token_bytes, window, stride)
    return JsonLines(path, shard) if index.format == "jsonl" else Lines(path, shard)
