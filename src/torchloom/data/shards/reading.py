"""Reading lines of shards by place, wherever the shards are. What a data worker holds; keeps no position.

A local directory is read where it is; a remote shard is fetched into the host's cache first, and the one that
comes next is fetched meanwhile.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchloom.data.order import Permutation
from torchloom.data.randomness import SeededReading
from torchloom.data.shards import index as indexes
from torchloom.data.shards.deal import Piece
from torchloom.data.shards.fetcher import Fetcher
from torchloom.data.shards.formats import Lines, TokenFormat, open_shard, windows
from torchloom.data.shards.index import ShardIndex
from torchloom.data.shards.indexing import build
from torchloom.data.shards.source import LocalSource, is_remote, local_root
from torchloom.data.transforms import Pipeline, Transforms
from torchloom.errors import DataDamaged, NotFound, UsageError

_OPEN = 4
"""Shards a reader keeps mapped: a batch may touch several small ones."""
_TRIES = 5
"""A shard may be evicted by another process before we have opened it; not many times in a row."""


class Shards:
    """All lines of a dataset, by (shard, place)."""

    def __init__(
        self,
        uri: str,
        window: int,
        stride: int,
        cache_dir: str | Path | None,
        cache_bytes: int,
        verify: bool,
        transform: Callable[[Any], Any] | None,
    ) -> None:
        self._fetcher = Fetcher(uri, _cache_dir(cache_dir), cache_bytes) if is_remote(uri) else None
        self._root = local_root(uri)
        self._verify, self.transform = verify, transform
        self._open: OrderedDict[int, Lines | TokenFormat] = OrderedDict()
        self._orders: OrderedDict[tuple[int, int, int], Permutation] = OrderedDict()
        self._ahead = -1
        self.index = self._read_index(uri)
        tokens = self.index.format == "tokens"
        if tokens != (window > 0) or (tokens and stride < 1):
            raise UsageError(
                "token shards need a window of at least 1 token"
                if tokens
                else "only token shards have a window",
                hint="give window=…" if tokens else "leave out window and stride",
            )
        largest = max(shard.bytes for shard in self.index.shards)
        if self._fetcher is not None and largest > cache_bytes:
            raise UsageError(
                f"a shard of {largest:,} bytes does not fit into a cache of {cache_bytes:,}",
                hint="give cache_bytes",
            )
        self._window, self._stride = window, stride
        self._seeded = SeededReading()
        self.lines = [
            windows(shard, self.index.token_bytes, window, stride) if tokens else shard.lines
            for shard in self.index.shards
        ]
        self.fingerprint = self.index.fingerprint(window, stride)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict(), "_orders": OrderedDict(), "_ahead": -1}

    def read(
        self,
        seed: int | None,
        base: int,
        epoch: int,
        piece: Piece,
        ahead: int | None,
        pipeline: Pipeline | None = None,
    ) -> list[Any]:
        """The lines of a piece. `seed` is None for the order in the file; `base` seeds the transform.

        `pipeline` is what `Transforms` shall do, for a reader that does not share their memory.
        """
        self._expect(ahead)
        shard, numbers = self._opened(piece.shard), self.numbers(seed, epoch, piece)
        if self.transform is None:
            return shard.at(numbers)
        prefix, transform = (base, epoch, piece.shard), self.transform
        lines = dict(zip(numbers, shard.at(numbers), strict=True))
        if not isinstance(transform, Transforms):
            return self._seeded.read(lambda number: transform(lines[number]), prefix, numbers)
        chosen = transform.pipeline if pipeline is None else pipeline
        return self._seeded.read(
            lambda number: transform.through(chosen, lines[number], (*prefix, number)), prefix, numbers
        )

    def numbers(self, seed: int | None, epoch: int, piece: Piece) -> list[int]:
        """Which lines of its shard a piece is, counted from 0."""
        if seed is None:
            return list(range(piece.start, piece.stop))
        return self._order(seed, epoch, piece.shard).span(piece.start, piece.stop)

    def stream(
        self, seed: int | None, base: int, epoch: int, piece: Piece, ahead: int | None
    ) -> Iterator[Any]:
        """The same, some at a time."""
        for start in range(piece.start, piece.stop, 256):
            part = Piece(piece.shard, start, min(start + 256, piece.stop))
            yield from self.read(seed, base, epoch, part, ahead)

    def close(self) -> None:
        """Unmap the shards and end the fetching process of this process."""
        self._open.clear()
        if self._fetcher is not None:
            self._fetcher.close()

    def _order(self, seed: int, epoch: int, shard: int) -> Permutation:
        key = (seed, epoch, shard)
        order = self._orders.get(key)
        if order is None:
            order = self._orders[key] = Permutation(self.lines[shard], seed, epoch, "lines", shard)
            while len(self._orders) > _OPEN:
                self._orders.popitem(last=False)
        return order

    def _expect(self, ahead: int | None) -> None:
        if self._fetcher is None or ahead is None or ahead == self._ahead or ahead in self._open:
            return
        self._ahead = ahead
        self._fetcher.ahead(self.index.shards[ahead])

    def _opened(self, number: int) -> Lines | TokenFormat:
        shard = self._open.get(number)
        if shard is None:
            shard = self._open[number] = self._opening(number)
            while len(self._open) > _OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(number)
        return shard

    def _opening(self, number: int) -> Lines | TokenFormat:
        entry = self.index.shards[number]
        for _ in range(_TRIES):
            try:
                path = self._root / entry.name if self._fetcher is None else self._fetcher.get(entry)
                if self._fetcher is None and self._verify and entry.sha256:
                    self._check(path, entry.sha256)
                return open_shard(path, self.index, entry, self._window, self._stride)
            except FileNotFoundError:
                if self._fetcher is None:
                    break
            except OSError as error:
                raise DataDamaged(f"{entry.name} cannot be read ({error.strerror})") from None
        raise DataDamaged(
            f"{entry.name} is missing", hint="is the cache too small, or the dataset incomplete?"
        )

    @staticmethod
    def _check(path: Path, sha256: str) -> None:
        with open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise DataDamaged(f"{path.name} does not match its index", hint="fetch the dataset again")

    def _read_index(self, uri: str) -> ShardIndex:
        if self._fetcher is None:
            source = LocalSource(self._root)
            if not (self._root / indexes.NAME).exists():
                return build(source)
            size = (self._root / indexes.NAME).stat().st_size
            if size > indexes.MOST_INDEX_BYTES:
                raise UsageError(f"{indexes.NAME} is absurdly large ({size:,} bytes)")
            return indexes.parse((self._root / indexes.NAME).read_bytes())
        try:
            return indexes.parse(self._fetcher.read(indexes.NAME, indexes.MOST_INDEX_BYTES))
        except NotFound:
            raise NotFound(
                f"{uri} has no {indexes.NAME}", hint=f"write one: python -m torchloom.data.shards.index {uri}"
            ) from None


def _cache_dir(given: str | Path | None) -> Path:
    """As given, else LOOM_DATA_CACHE, else the user's cache directory."""
    chosen = given or os.environ.get("LOOM_DATA_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (Path(caches) / "torchloom" / "shards").expanduser().absolute()
