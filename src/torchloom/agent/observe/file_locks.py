"""Who holds the file lock that a process waits for, by the kernel's table of locks (/proc/locks).

Knows flock and fcntl locks of this host. Locks of an open file description (F_OFD_SETLKW) have no owner in
that table, and a lock that another host holds (NFS) is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchloom.agent.observe.kernel_files import read_small

_MOST = 1 << 20
_ANCESTORS = 8


def holder(pid: int) -> int:
    """The process that holds what this process waits for; 0 if nobody knows."""
    try:
        with open("/proc/locks", "rb") as table:
            return blocked_by(table.read(_MOST), pid)
    except OSError:
        return 0


def blocked_by(table: bytes, pid: int) -> int:
    """Lines are `3: FLOCK ADVISORY WRITE 4711 08:01:42 0 EOF`; those who wait for it follow under the same
    number, with an arrow in front of the kind."""
    owners: dict[bytes, int] = {}
    for line in table.splitlines():
        words = line.split()
        waits = len(words) > 1 and words[1] == b"->"
        place = 5 if waits else 4
        if len(words) <= place or not words[place].isdigit():
            continue
        if not waits:
            owners[words[0]] = int(words[place])
        elif int(words[place]) == pid:
            return owners.get(words[0], 0)
    return 0


def name_of(pid: int, waiting: int, ranks: Mapping[int, int]) -> str:
    """`rank 0 (pid 4711)` where a worker of the same job, or a child of one, holds it; else its program. A
    process that is gone may have left its lock to a child."""
    if pid == waiting:
        return f"it (pid {pid}) itself"
    owner = next((one for one in _ancestors(pid) if one in ranks), 0)
    if owner:
        return f"{'a child of ' * (owner != pid)}rank {ranks[owner]} (pid {pid})"
    name = read_small(f"/proc/{pid}/comm").decode("utf-8", "replace").strip()
    return f"{name} (pid {pid})" if name else f"a child of process {pid}, which is gone,"


def _ancestors(pid: int) -> list[int]:
    """The process itself, its parent, and so on."""
    found: list[int] = []
    while pid > 1 and len(found) < _ANCESTORS:
        found.append(pid)
        # The name stands in brackets and may contain anything.
        fields = read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
    return found
