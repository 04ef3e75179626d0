"""Small files of the kernel (/proc, cgroups), read in one call. A file that cannot be read is empty."""

from __future__ import annotations

import os

_MOST = 4096


def read_small(path: str) -> bytes:
    """Up to 4 kB; empty when it is gone or not ours to read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _MOST)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
