"""Finds Flight Recorder dumps and reads them: which files, of which ranks. Judges nothing.

torch writes one file per rank, `<prefix><rank>`, and the rank is nowhere else. Files are read as hostile:
nothing in them is executed, and one that cannot be read costs that rank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from torchloom.core.flight.dump import read_dump
from torchloom.errors import DumpUnreadable, NotFound, UsageError
from torchloom.model.flight import Dump
from torchloom.wire.flight_dump import decode_dump
from torchloom.wire.plain_pickle import ReadLimits

_NAME = re.compile(r"(?P<prefix>.*?)(?P<rank>\d{1,7})(?P<suffix>\.(?:json|pickle|pkl|bin|dump))?")
_MOST_FILES = 100_000


@dataclass
class DumpFiles:
    """What was found."""

    dumps: list[Dump] = field(default_factory=list)
    seen_ns: dict[int, int] = field(default_factory=dict)
    """When each was written."""
    files: dict[int, str] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    """One sentence for each file that is no dump."""


def read(paths: list[Path], prefix: str | None = None) -> DumpFiles:
    """The dumps in these files and directories. Raises a UsageError if two of them are of one rank."""
    named = _named(paths, prefix)
    if not named:
        more = f" whose names begin with {prefix!r}" if prefix else ""
        raise NotFound(
            f"There are no dumps{more} in {', '.join(str(p) for p in paths)}",
            hint="torch writes one file per rank, and its name ends in the rank: nccl_trace_rank_0",
        )
    found = DumpFiles()
    for rank, path in sorted(named.items()):
        try:
            limits = ReadLimits()
            if path.stat().st_size > limits.size:
                raise DumpUnreadable(f"it is larger than {limits.size // 2**20} MB")
            found.dumps.append(read_dump(decode_dump(path.read_bytes(), limits), rank))
            found.seen_ns[rank] = path.stat().st_mtime_ns
            found.files[rank] = str(path)
        except DumpUnreadable as error:
            found.unreadable.append(f"{path.name} cannot be read: {error.message}")
        except OSError as error:
            found.unreadable.append(f"{path.name} cannot be read: {error.strerror}")
    if not found.dumps:
        raise DumpUnreadable(found.unreadable[0])
    return found


def _named(paths: list[Path], prefix: str | None) -> dict[int, Path]:
    chosen: dict[int, Path] = {}
    for path in paths:
        if not path.exists():
            raise NotFound(f"{path} does not exist")
        inside = path.is_dir()
        for file in sorted(path.iterdir())[:_MOST_FILES] if inside else [path]:
            parts = _NAME.fullmatch(file.name)
            if not file.is_file() or (prefix is not None and (not parts or parts["prefix"] != prefix)):
                continue
            if parts is None:
                if inside:
                    continue
                raise UsageError(f"The name of {file.name} does not end in a rank")
            _choose(chosen, int(parts["rank"]), file)
    return chosen


def _choose(chosen: dict[int, Path], rank: int, file: Path) -> None:
    """Of `rank_0` and `rank_0.json` the first: it may have stacks."""
    other = chosen.get(rank)
    if other is None or other == file:
        chosen[rank] = file
    elif _stem(other) == _stem(file):
        chosen[rank] = min(other, file, key=lambda p: (p.suffix == ".json", p.name))
    else:
        raise UsageError(
            f"There are two dumps of rank {rank}: {other.name} and {file.name}",
            hint="choose those of one job with --prefix",
        )


def _stem(file: Path) -> str:
    parts = _NAME.fullmatch(file.name)
    return parts["prefix"] if parts else file.name
