"""Where a job's memory tier is on a host, and how it is given back.

Owns the names of its directory and files, for the training process that fills it (memory.py) and for the
agent that removes it. Needs no torch.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PREFIX = "memory-"
SHARED = "shared"
NUMBERS = "numbers"
LINE = "line"
SLOTS = 3
"""Two in turn; a third is made while one is being written to disk, another rank has not sealed the last, or
one is being copied to a neighbour."""
USABLE = 0.8
"""How much of the memory that is free now the tier may take."""
NEIGHBOUR = "neighbour"
_GATHERED = "gathered-"
_ARRIVING = "arriving-"
_COPYING = rf"(wanted|copied)-\d+(\.new)?|copy-\d+\.\d|{_GATHERED}(\d+|{SHARED})|{NEIGHBOUR}(\.new)?"
_FETCHING = r"coming-\d+|wish-\d+(\.new)?"
_FILE = re.compile(rf"({_ARRIVING})?(own-\d+|shared)\.\d|{NUMBERS}|{LINE}(\.new)?|{_COPYING}|{_FETCHING}")


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


def neighbour(folder: Path) -> Path:
    """Where the agent says which neighbour keeps copies, and with what key they are encrypted on the way."""
    return folder / NEIGHBOUR


def wanted(folder: Path, rank: int) -> Path:
    """Where a rank says which of its states its agent should copy."""
    return folder / f"wanted-{rank}"


def copied(folder: Path, rank: int) -> Path:
    """Where the agent says how that ended."""
    return folder / f"copied-{rank}"


def copy(folder: Path, rank: int, slot: int) -> Path:
    """A state of a rank of another host."""
    return folder / f"copy-{rank}.{slot}"


def gathered(folder: Path, who: int | str) -> Path:
    """The image of a rank, or what ranks share, of a state that another number of ranks saved."""
    return folder / f"{_GATHERED}{who}"


def coming(folder: Path, rank: int) -> Path:
    """Where the agent says which states of a rank it can bring (arriving.py)."""
    return folder / f"coming-{rank}"


def wish(folder: Path, rank: int) -> Path:
    """Where the rank says which of them it restores."""
    return folder / f"wish-{rank}"


def arriving(folder: Path, who: str, slot: int) -> Path:
    """What will be in this slot once it is here."""
    return folder / f"{_ARRIVING}{who}.{slot}"


def all_gathered(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_GATHERED}*"))


def drop_gathered(folder: Path) -> None:
    """Give their memory back."""
    for path in all_gathered(folder):
        with suppress(OSError):
            path.unlink()


def slot_files(folder: Path) -> list[Path]:
    """What the training itself writes, and so may write again."""
    return sorted(path for pattern in ("own-*", f"{SHARED}.*") for path in folder.glob(pattern))


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


def usable(directory: Path) -> int:
    """Memory that may be taken: a part of what is free in the file system, the host and this container."""
    free = [shutil.disk_usage(directory).free]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        free.append(limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    return int(USABLE * max(0, min(free)))
