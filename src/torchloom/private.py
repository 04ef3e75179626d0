"""Directories and files that only we may touch, in places where everybody may make some (/dev/shm, /tmp).

A neighbour can take a name there before us. So every directory of ours in such a place is made or checked
here. Needs only the standard library: probe, spawner and checkpoints use it, too.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def make_private(path: Path | str) -> None:
    """Make `path` a directory of ours with mode 0700. Raises OSError; EPERM if it is not ours alone."""
    path = Path(path)
    missing: list[Path] = []
    parent = path
    while not os.path.lexists(parent):
        missing.append(parent)
        parent = parent.parent
    for one in reversed(missing):
        try:
            os.mkdir(one, 0o700)
        except FileExistsError:
            pass  # somebody was faster; whether it was us is seen below
    why = why_not_private(path)
    if why:
        raise PermissionError(errno.EPERM, why, str(path))
    if stat.S_IMODE(os.lstat(path).st_mode) != 0o700:
        os.chmod(path, 0o700)


def why_not_private(path: Path | str) -> str:
    """Why this directory is not to be trusted, in words; empty if it is ours, or not there."""
    path = Path(path)
    try:
        info = os.lstat(path)
        above = os.stat(path.parent)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"it cannot be looked at ({error.strerror})"
    if stat.S_ISLNK(info.st_mode):
        return "it is a symbolic link"
    if not stat.S_ISDIR(info.st_mode):
        return "it is not a directory"
    if info.st_uid != os.geteuid():
        return f"it belongs to user {info.st_uid}"
    if above.st_uid not in (os.geteuid(), 0):
        return f"the directory above it belongs to user {above.st_uid}"
    return ""


def why_not_ours(descriptor: int, size: int | None = None) -> str:
    """Why an open file is not one of ours, in words; empty if it is. `size`: what it must have at least."""
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode):
        return "it is not a regular file"
    if info.st_uid != os.geteuid():
        return f"it belongs to user {info.st_uid}"
    if info.st_nlink > 1:
        return "it has a second name"
    if size is not None and info.st_size < size:
        return f"it has {info.st_size} bytes, not {size}"
    return ""
