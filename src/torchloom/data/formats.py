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
from pathlib import Path
from typing import Any

import torch

from torchloom.data.index import Index, Shard
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
        self._ends = array("q")
        for start in range(0, shard.bytes, _SCAN_BYTES):
            count = min(_SCAN_BYTES, shard.bytes - start)
            chunk = torch.frombuffer(self.memory, dtype=torch.uint8, offset=start, count=count)
            self._ends.extend(((chunk == 10).nonzero().flatten() + start).tolist())
        if shard.bytes and self.memory[shard.bytes - 1 : shard.bytes] != b"\n":
            self._ends.append(shard.bytes)
        if len(self._ends) != shard.lines:
            raise DataDamaged(
                f"{shard.name} has {len(self._ends):,} lines and its index says {shard.lines:,}",
                hint="write the index again if it changed on purpose",
            )

    def raw(self, number: int) -> bytes:
        start = self._ends[number - 1] + 1 if number else 0
        line: bytes = self.memory[start : self._ends[number]]
        return line[:-1] if line.endswith(b"\r") else line

    def __getitem__(self, number: int) -> Any:
        return self.raw(number).decode(errors="replace")


class JsonLines(Lines):
    """One JSON document a line."""

    def __getitem__(self, number: int) -> Any:
        try:
            return json.loads(self.raw(number))
        except (ValueError, RecursionError):
            raise DataDamaged(f"{self.name}, line {number + 1}, is not JSON") from None


class Tokens(Mapped):
    """Little-endian numbers of 2 or 4 bytes; line n is the window of tokens that begins at n × stride."""

    def __init__(self, path: Path, shard: Shard, token_bytes: int, window: int, stride: int) -> None:
        if sys.byteorder != "little":
            raise UsageError("token shards are little-endian and this machine is not")
        super().__init__(path, shard)
        self._type = torch.uint16 if token_bytes == 2 else torch.uint32
        self._bytes, self._window, self._stride = token_bytes, window, stride

    def __getitem__(self, number: int) -> Any:
        offset = number * self._stride * self._bytes
        view = torch.frombuffer(self.memory, dtype=self._type, count=self._window, offset=offset)
        return view.to(torch.int64)


def open_shard(path: Path, index: Index, shard: Shard, window: int, stride: int) -> Lines | Tokens:
    """The shard, ready to be asked for lines by number."""
    if index.format == "tokens":
        return Tokens(path, shard, index.token_bytes, window, stride)
    return JsonLines(path, shard) if index.format == "jsonl" else Lines(path, shard)
