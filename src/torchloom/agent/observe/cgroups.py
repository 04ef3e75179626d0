"""Which cgroup rules a process's CPU time, and how long its quota held the group back. Changes nothing.

Both versions of cgroups. A process is held back by the quota of its own group and by those of all groups
above it, as far as this host shows them; in a container the highest one seen is the container's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_MOST_LEVELS = 8


def cpu_group(pid: int, root: Path = ROOT) -> tuple[Path, int] | None:
    """The group and the version of cgroups; None when the process is gone or there are no cgroups."""
    lines = _read(f"/proc/{pid}/cgroup").decode("utf-8", "replace").splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return root / "cpu" / path.lstrip("/"), 1
    for line in lines:
        if line.startswith("0::"):
            return root / line[3:].lstrip("/"), 2
    return None


def throttled(pid: int, root: Path = ROOT) -> tuple[str, int] | None:
    """The group, and nanoseconds in which a quota kept it (or a group above it) from running since it was
    made. Whoever subtracts must compare the group, too: a process may be moved."""
    found = cpu_group(pid, root)
    if found is None:
        return None
    group, top = str(found[0]), str(root / "cpu" if found[1] == 1 else root)
    level, total = group, 0
    for _ in range(_MOST_LEVELS):
        total += _throttled_ns(f"{level}/cpu.stat")
        if len(level) <= len(top):
            break
        level = os.path.dirname(level)
    return group, total


def oom_kills(pid: int, root: Path = ROOT) -> tuple[str, int] | None:
    """The file that counts processes of this process's memory cgroup which the OOM killer ended, and the
    count; None when there is none. The file stays readable when the process is gone."""
    lines = _read(f"/proc/{pid}/cgroup").decode("utf-8", "replace").splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return _counted(f"{root}/memory/{path.lstrip('/')}/memory.oom_control")
    for line in lines:
        if line.startswith("0::"):
            return _counted(f"{root}/{line[3:].lstrip('/')}/memory.events")
    return None


def killed_since(before: Iterable[tuple[str, int]]) -> bool:
    """Whether the OOM killer ended a process of one of these cgroups since its count was read."""
    least: dict[str, int] = {}
    for path, count in before:
        least[path] = min(count, least.get(path, count))
    return any((now := _counted(path)) is not None and now[1] > count for path, count in least.items())


def _counted(path: str) -> tuple[str, int] | None:
    for line in _read(path).splitlines():
        match line.split():
            case [b"oom_kill", value]:
                return path, int(value)
    return None


def _throttled_ns(path: str) -> int:
    """0 where there is no quota or nothing can be read."""
    for line in _read(path).splitlines():
        match line.split():
            case [b"throttled_time", value]:
                return int(value)
            case [b"throttled_usec", value]:
                return int(value) * 1000
    return 0


def _read(path: str) -> bytes:
    """Empty when it is gone or not ours to read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(65536) or b""
    except OSError:
        return b""


def throttled_per_step(seen: Sequence[tuple[int, str, int]]) -> int:
    """Since the process has been in its present cgroup, over the last seconds."""
    if not seen:
        return 0
    now, group, total = seen[-1]
    before, least = next((steps, ns) for steps, name, ns in seen if name == group)
    return max(0, total - least) // (now - before) if now > before else 0
