"""Where torchloom keeps things on a host. Owns paths and their permissions, nothing else.

Durable state is under LOOM_HOME; sockets and black boxes are under short per-home directories, because
a socket's path is limited to 107 bytes and a black box must be memory, not disk.
"""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from torchloom.errors import HomeUnusable
from torchloom.private import make_private, why_not_private


@dataclass(frozen=True)
class Home:
    """All paths of one installation. Two homes never share anything."""

    root: Path

    @classmethod
    def default(cls) -> Home:
        """LOOM_HOME, else ~/.torchloom."""
        chosen = os.environ.get("LOOM_HOME")
        return cls((Path(chosen) if chosen else Path.home() / ".torchloom").expanduser().absolute())

    @property
    def tag(self) -> str:
        """Short and stable: tells the directories of this home from those of another."""
        return hashlib.sha256(os.fsencode(self.root)).hexdigest()[:10]

    @property
    def token_file(self) -> Path:
        return self.root / "token"

    @property
    def tokens_file(self) -> Path:
        """Further tokens by name, as hashes."""
        return self.root / "tokens.json"

    @property
    def webhooks_file(self) -> Path:
        """Receivers of incidents; there is none unless a person wrote it."""
        return self.root / "webhooks.toml"

    @property
    def nats_dir(self) -> Path:
        return self.root / "nats"

    @property
    def cluster_dir(self) -> Path:
        """What makes this host part of a cluster; there is none on a host that stands alone."""
        return self.root / "cluster"

    @property
    def keys_dir(self) -> Path:
        """One key per submitted job, which encrypts its environment in the bus."""
        return self.root / "keys"

    @property
    def parts_dir(self) -> Path:
        """One JSON file per running part: pid, start ticks, address. What a new `loom up` adopts by."""
        return self.root / "parts"

    @property
    def logs_dir(self) -> Path:
        """Logs of our own parts."""
        return self.root / "logs"

    @property
    def jobs_dir(self) -> Path:
        """One directory per job: worker logs."""
        return self.root / "jobs"

    @property
    def boxes_fallback(self) -> Path:
        return self.root / "boxes"

    @property
    def boxes(self) -> Path:
        """Black boxes: memory if the host has /dev/shm, else the fallback on disk."""
        shm = Path("/dev/shm")
        chosen = shm / f"loom-{os.getuid()}-{self.tag}"
        return chosen if shm.is_dir() and not why_not_private(chosen) else self.boxes_fallback

    @property
    def sockets(self) -> Path:
        """A short path; where a neighbour has taken its name, one that is longer and ours."""
        base = os.environ.get("XDG_RUNTIME_DIR") or _temporary()
        chosen = Path(base) / f"loom-{os.getuid()}-{self.tag}"
        return chosen if not why_not_private(chosen) else self.root / "sockets"

    def prepare(self) -> None:
        """Make the directories, private to this user; say in one sentence why that is impossible.

        Not those outside the root: their user makes them, and removes them again.
        """
        for path in (self.root, self.nats_dir, self.parts_dir, self.logs_dir, self.jobs_dir):
            private_directory(path)


def private_directory(path: Path) -> None:
    """Make `path` a directory of ours with mode 0700, and refuse one that others could have planted."""
    try:
        make_private(path)
        probe = path / f".writable-{os.getpid()}"
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise HomeUnusable(_why(path, error)) from error


def _why(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return f"No space is left for {path}; free some or set LOOM_HOME to another disk."
    if error.errno == errno.EPERM:
        return f"{path} cannot be used: {error.strerror}; set LOOM_HOME to a directory of your own."
    if error.errno in (errno.EROFS, errno.EACCES):
        return f"{path} cannot be written; set LOOM_HOME to a directory of your own."
    return f"{path} cannot be used ({error.strerror}); set LOOM_HOME to a directory of your own."


def _temporary() -> str:
    import tempfile  # takes longer to import than all else here

    return tempfile.gettempdir()
