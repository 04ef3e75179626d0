"""What spawners have on disk: socket, lock and log. Who holds the lock is alive; the rest can be swept.

Owns only these files; talking through the socket is `spawners`'s affair.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def key_of(path: Path) -> str:
    """The key of the spawner that serves this socket."""
    return path.stem.removeprefix("spawner-")


def is_free(path: Path) -> bool:
    """Whether no spawner holds the lock of this socket."""
    try:
        descriptor = os.open(_lock_of(path), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def sweep(path: Path) -> bool:
    """Remove what a spawner that is gone left beside its socket; False while it is there."""
    lock = _lock_of(path)
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held by a living one, however busy it is
            for left in (path, path.with_suffix(".log"), lock):
                left.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True
