"""The NUMA nodes of this host, each with its cores, as the kernel lists them. Mostly one for each socket."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

NODES = Path("/sys/devices/system/node")
_MOST_CORES = 1 << 16


def numa_cores(cores: Collection[int], nodes: Path = NODES) -> tuple[tuple[int, ...], ...]:
    """These cores by NUMA node; all together if the kernel says nothing of nodes, or not of all cores."""
    usable, found = set(cores), []
    for path in nodes.glob("node[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            mine = usable & _listed((path / "cpulist").read_text())
            if mine:
                found.append(tuple(sorted(mine)))
    if sorted(core for node in found for core in node) != sorted(usable):
        return (tuple(sorted(usable)),)
    return tuple(sorted(found))


def _listed(text: str) -> set[int]:
    """`0-3,8` → 0, 1, 2, 3, 8. Raises ValueError."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        end = int(last or first)
        if not 0 <= int(first) <= end < _MOST_CORES:
            raise ValueError(text)
        found.update(range(int(first), end + 1))
    return found
