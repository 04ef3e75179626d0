"""Where a job's memory tier is on a host, and how it is given back.

Owns the names of its directory and files, for the training process that fills it (memory.py) and for the
agent that removes it. Needs no torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PREFIX = "memory-"
SHARED = "shared"
NUMBERS = "numbers"
LINE = "line"
_FILE = re.compile(rf"(own-\d+|shared)\.\d|{NUMBERS}|{LINE}(\.new)?")


def directory(base: Path, job: str) -> Path:
    """The directory of a job, below one in shared memory that is the agent's."""
    return base / f"{PREFIX}{job}"


def own(rank: int) -> str:
    return f"own-{rank}"


def file(folder: Path, who: str, slot: int) -> Path:
    return folder / f"{who}.{slot}"


def numbers(folder: Path) -> Path:
    """What the store calls the generations of this run (runs.py)."""
    return folder / NUMBERS


def line_file(folder: Path) -> Path:
    """What this host knows of the line of descent (hostline.py)."""
    return folder / LINE


def found_in(base: Path) -> Iterator[tuple[str, Path]]:
    """(job, directory) of every tier."""
    with suppress(OSError):
        for entry in sorted(base.iterdir()):
            if entry.name.startswith(PREFIX) and entry.is_dir() and not entry.is_symlink():
                yield entry.name.removeprefix(PREFIX), entry


def size(folder: Path) -> int:
    """Memory it takes now."""
    total = 0
    with suppress(OSError):
        for entry in os.scandir(folder):
            with suppress(OSError):
                total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def release(folder: Path) -> None:
    """Give the memory back. Files that are not of a tier stay, and the directory with them."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if _FILE.fullmatch(entry.name):
                with suppress(OSError):
                    os.unlink(entry.path)
        folder.rmdir()
