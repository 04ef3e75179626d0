"""Maps this process's black box and says who writes into it. The layout is in wire/blackbox.py.

The mapping is never undone: the native recorder's threads may still write while the interpreter ends.
"""

from __future__ import annotations

import mmap
import os
import time
from typing import NamedTuple

from torchloom.wire.blackbox import SIZE, Header, Life, View


class OwnBox(NamedTuple):
    """A mapped black box."""

    view: View
    address: int


def open_box(path: str) -> OwnBox | None:
    """Map the box at `path`, or None when there is none or it is not one of ours (telemetry is off then)."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        # Touching a page beyond the end of a file is a SIGBUS, so the size is looked at first.
        if os.fstat(descriptor).st_size < SIZE:
            return None
        box = _map(descriptor)
    except (OSError, ValueError, ImportError):
        return None
    finally:
        os.close(descriptor)
    return box if box.view.is_valid() else None


def _map(descriptor: int) -> OwnBox:
    """mmap(2) through ctypes: Python's mmap object keeps a descriptor open, which the script would see."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    int_, long_ = ctypes.c_int, ctypes.c_long
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, int_, int_, int_, long_]
    address = libc.mmap(None, SIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap of the black box failed")
    memory = (ctypes.c_char * SIZE).from_address(address)
    return OwnBox(View(memoryview(memory).cast("B")), int(address))


def write_identity(view: View) -> None:
    """Say which process writes here and when its clocks were read; the worker is RUNNING from now on."""
    view.set_header(Header.PID_NAMESPACE, os.stat("/proc/self/ns/pid").st_ino)
    view.set_header(Header.START_TICKS, start_ticks())
    view.set_header(Header.STACK_START, _of_itself(28))
    view.set_header(Header.REALTIME_NS, time.time_ns())
    view.set_header(Header.MONOTONIC_NS, time.monotonic_ns())
    view.set_header(Header.PID, os.getpid())
    view.set_header(Header.LIFE, Life.RUNNING)


def start_ticks() -> int:
    """When this process started, in clock ticks since boot."""
    return _of_itself(22)


def _of_itself(field: int) -> int:
    """A number of /proc/self/stat, whose fields count from 1."""
    with open("/proc/self/stat", "rb") as file:
        # The second field is the command in brackets and may hold spaces: count from its end.
        return int(file.read().rpartition(b")")[2].split()[field - 3])
