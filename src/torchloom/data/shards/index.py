"""The index of a dataset: which shards, how long, how many lines, with which checksum.

`index.json` beside the shards. It comes from outside and is believed in nothing: names must stay inside the
dataset, sizes must be possible, everything must be of the right type. The checksum (SHA-256: with hardware
support the fastest good one of the standard library, and the cache is addressed by it) is that of the bytes.

    python -m torchloom.data.shards.index DIRECTORY [--format text|jsonl|tokens] [--token-bytes 2|4]

writes one. It does not open shards for reading samples; `formats` does.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torchloom.errors import UsageError

NAME = "index.json"
MOST_INDEX_BYTES = 256 << 20
MOST_SHARD_BYTES = 1 << 40
MOST_SHARDS = 1_000_000
FORMATS = {"text": (".txt",), "jsonl": (".jsonl",), "tokens": (".bin",)}

_HINT = "write the index again with: python -m torchloom.data.shards.index"
_PART = re.compile(r"[^\x00-\x1f\x7f\\/:]{1,255}")


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of the dataset."""

    name: str
    """Relative to the dataset, with forward slashes."""
    bytes: int
    lines: int
    """Lines of text; 0 for tokens, whose number of windows follows from the length."""
    sha256: str = ""
    """Empty if not computed: a local directory without an index."""


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """All shards, in the order of their names in the index."""

    format: str
    token_bytes: int
    shards: tuple[Shard, ...]

    def fingerprint(self, *options: object) -> str:
        """Tells this data, read with these options, from any other."""
        facts = (self.format, self.token_bytes, options, [(s.name, s.bytes, s.lines) for s in self.shards])
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    def dump(self) -> bytes:
        shards = [
            {"name": s.name, "bytes": s.bytes, "lines": s.lines, "sha256": s.sha256} for s in self.shards
        ]
        head = {"torchloom_index": 1, "format": self.format, "token_bytes": self.token_bytes}
        return json.dumps({**head, "shards": shards}, indent=1, ensure_ascii=False).encode() + b"\n"


def parse(raw: bytes) -> ShardIndex:
    """The index, or a `UsageError` that says what is wrong with it."""
    if len(raw) > MOST_INDEX_BYTES:
        raise UsageError(
            f"{NAME} is larger than {MOST_INDEX_BYTES >> 20} MiB", hint="use fewer, larger shards"
        )
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        raise UsageError(f"{NAME} is not JSON", hint=_HINT) from None
    if not isinstance(content, dict) or content.get("torchloom_index") != 1:
        raise UsageError(f"{NAME} is not an index of torchloom, version 1", hint=_HINT)
    format_ = content.get("format")
    if not isinstance(format_, str) or format_ not in FORMATS:
        raise UsageError(f"{NAME} has no format of {', '.join(FORMATS)}", hint=_HINT)
    token_bytes = content.get("token_bytes", 2)
    if token_bytes not in (2, 4) or isinstance(token_bytes, (bool, float)):
        raise UsageError(f"{NAME}: tokens are of 2 or 4 bytes", hint=_HINT)
    entries = content.get("shards")
    if not isinstance(entries, list) or not 0 < len(entries) <= MOST_SHARDS:
        raise UsageError(f"{NAME} must list between 1 and {MOST_SHARDS} shards", hint=_HINT)
    shards = tuple(_shard(entry, number) for number, entry in enumerate(entries))
    if len({shard.name for shard in shards}) != len(shards):
        raise UsageError(f"{NAME} names a shard twice", hint=_HINT)
    return ShardIndex(format_, token_bytes, shards)


def _shard(entry: Any, number: int) -> Shard:
    where = f"{NAME}, shard {number}"
    if not isinstance(entry, dict):
        raise UsageError(f"{where} is not an object", hint=_HINT)
    name = entry.get("name")
    if not isinstance(name, str) or not good_name(name):
        raise UsageError(
            f"{where}: the name must be a path inside the dataset, and is {name!r:.80}", hint=_HINT
        )
    size, lines = entry.get("bytes"), entry.get("lines", 0)
    for value, what, most in ((size, "bytes", MOST_SHARD_BYTES), (lines, "lines", size)):
        # A line takes at least one byte, so a count above the size is a lie that would cost us memory.
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= (most or 0):
            raise UsageError(f"{where}: {value!r:.40} {what} is impossible", hint=_HINT)
    digest = entry.get("sha256")
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise UsageError(f"{where} has no sha256", hint=_HINT)
    assert isinstance(size, int)
    return Shard(name, size, lines, digest)


def good_name(name: str) -> bool:
    """A relative path that cannot leave the dataset, on any system."""
    parts = name.split("/")
    return len(name) <= 1024 and all(_PART.fullmatch(p) and p not in (".", "..") for p in parts)


def format_of(names: Iterable[str]) -> str:
    """The format whose files these are, by their endings."""
    found = {kind for name in names for kind, ends in FORMATS.items() if name.endswith(ends)}
    if len(found) != 1:
        raise UsageError(
            "the shards must be all *.txt, all *.jsonl or all *.bin" if found else "there are no shards",
            hint="name the format, or keep one kind in a directory",
        )
    return found.pop()


class Measure:
    """Counts and checksums a shard as its bytes pass by."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._newlines = 0
        self._last = b"\n"
        self.bytes = 0

    def add(self, chunk: bytes) -> None:
        self._digest.update(chunk)
        self._newlines += chunk.count(b"\n")
        self._last = chunk[-1:] or self._last
        self.bytes += len(chunk)

    def shard(self, name: str, format_: str) -> Shard:
        lines = self._newlines + (self._last != b"\n")
        return Shard(name, self.bytes, 0 if format_ == "tokens" else lines, self._digest.hexdigest())


if __name__ == "__main__":
    from torchloom.data.shards.indexing import main

    raise SystemExit(main())
