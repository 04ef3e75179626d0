"""Whether a worker's process has become another program (an exec), which no exit reports. Makes no judgement.

A process that has recorded something and then executes a program, be it the same one again, has left its
process groups: what it had in its memory and on its device is gone.
"""

from __future__ import annotations

import os

from torchloom.agent.observe.boxes import ReadableBox
from torchloom.agent.observe.kernel_files import read_small
from torchloom.core.detect.encoding import PEERS_AFTER_S
from torchloom.wire.blackbox import Header, Progress

_STACK_START = 25
"""Field 28 of /proc/<pid>/stat, counted after the name: another one after an exec."""


def became(pid: int, box: ReadableBox, now_ns: int) -> str:
    """The program that its process has become; looked for only while it records nothing. Unknown where a
    child of the worker's process records, as that of a shell, or in a pid namespace of its own."""
    if now_ns - box.progress(Progress.LAST_ACTIVITY_NS) < PEERS_AFTER_S * 1e9 or box.pid != pid:
        return ""
    return since(pid, box.view.header(Header.STACK_START))


def since(pid: int, stack_start: int) -> str:
    """The name of the program that the process executes, if its stack does not begin where it did; empty
    otherwise, and where the kernel does not show it."""
    now = stack_start_of(pid)
    # Without the permission to look it is 0 or 1.
    if now <= 1 or stack_start <= 1 or now == stack_start:
        return ""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def stack_start_of(pid: int) -> int:
    fields = read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[_STACK_START]) if len(fields) > _STACK_START else 0
