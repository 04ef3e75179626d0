"""Browser sessions that were ended before their time. Owns `sessions.json` beside the file of tokens (0600).

A session is a signed cookie, so the service remembers nothing while it lasts. A logout is remembered until
the cookie would have expired; all services of a home share the file, and it survives their restarts.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from torchloom.errors import HomeUnusable


class EndedSessions:
    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._until: dict[str, int] = {}

    def read(self) -> dict[str, int]:
        """Numbers of ended sessions with the second in which each would have expired."""
        if self._path is None:
            return self._until
        try:
            status = self._path.stat()
        except OSError:
            return self._until
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._until = msgspec.json.decode(self._path.read_bytes(), type=dict[str, int])
            except (OSError, msgspec.DecodeError) as error:
                # Whether a session was ended is unknown: refuse all of them.
                self._stamp = None
                raise HomeUnusable(f"{self._path.name} cannot be read ({type(error).__name__}).") from error
        return self._until

    def add(self, number: str, until_s: int, now_s: float) -> None:
        self._until = {n: at for n, at in self.read().items() if at > now_s} | {number: until_s}
        if self._path is not None:
            write_private(self._path, msgspec.json.encode(self._until))


def write_private(path: Path, data: bytes) -> None:
    """Replace a file whole, 0600 from its first byte on."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise HomeUnusable(f"{path.name} cannot be written ({error.strerror}).") from error
