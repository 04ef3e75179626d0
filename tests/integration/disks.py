"""A real file system that is soon full."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("FULL DISK NOT TESTED: mounting a small tmpfs needs root")
    try:
        yield place
    finally:
        # Lazily: a process that is just ending may still have a file open.
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> None:
    """Take all room with a file `ballast`."""
    with (place / "ballast").open("ab", buffering=0) as ballast:
        for size in (1 << 20, 4096, 512):
            with contextlib.suppress(OSError):
                while True:
                    ballast.write(bytes(size))
