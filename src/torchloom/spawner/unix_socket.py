"""Unix socket addresses of any length.

The kernel takes at most 107 bytes of path; a home directory or a test's temporary directory is often longer.
Such a path is then named through an open descriptor of its directory. This module opens no connection.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_LONGEST = 107


@contextlib.contextmanager
def usable_address(path: Path) -> Iterator[str]:
    """An address for bind() or connect() that means `path`; valid inside the block."""
    if len(os.fsencode(path)) <= _LONGEST:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
