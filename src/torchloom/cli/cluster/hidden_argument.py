"""A secret that was given on the command line is overwritten there: every user of a host can list processes.

The kernel shows the memory in which a process got its arguments. Between its start and this the secret can be
seen; LOOM_JOIN_TOKEN never shows it to others.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

_FIELDS = (48, 49)
"""arg_start and arg_end in /proc/self/stat, as proc(5) counts them."""


def hide_argument(secret: str) -> None:
    """Overwrite it in the list of processes. Where that is impossible nothing is done."""
    try:
        from_third = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = (int(from_third[number - 3]) for number in _FIELDS)
    except (OSError, ValueError, IndexError):
        return
    if not 0 < begin < end or not secret:
        return
    wanted, held = secret.encode(), ctypes.string_at(begin, end - begin)
    at = held.find(wanted)
    while at >= 0:
        ctypes.memset(begin + at, ord("*"), len(wanted))
        at = held.find(wanted, at + len(wanted))
