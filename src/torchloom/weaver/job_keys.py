"""The keys that encrypt jobs' environments: one for each submission, kept outside of the bus.

What the bus deletes may stay in its files for long (blocks are rewritten only now and then, and a disk may
be copied). So a value there is only ever encrypted, and it is gone when its key is: 32 bytes in a private
file of the home, overwritten and removed with the job.

Owns the keys, not what they encrypt. Every weaver that may lead must see the same keys: on one host they
share the home. For weavers on several hosts the directory can be one that all of them mount, or another
`JobKeys` can fetch them (docs/security.md)."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from torchloom.model.ids import check_token
from torchloom.private import make_private

KEY_BYTES = 32


class JobKeys(Protocol):
    """Keys by submission."""

    def make(self, name: str) -> bytes:
        """A new key, stored before this returns."""
        ...

    def get(self, name: str) -> bytes | None: ...

    def forget(self, name: str) -> None:
        """Nobody can read what it encrypts any more. One that is not there is no mistake."""
        ...

    def rename(self, name: str, to: str) -> None:
        """Give a key another name."""
        ...

    def names(self) -> list[str]: ...


class KeyFiles:
    """Keys in a directory that only this user may read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def make(self, name: str) -> bytes:
        key, path = secrets.token_bytes(KEY_BYTES), self._path(name)
        make_private(self._directory)
        with open(path, "xb", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        self._sync()
        return key

    def get(self, name: str) -> bytes | None:
        try:
            key = self._path(name).read_bytes()
        except OSError:
            return None
        return key if len(key) == KEY_BYTES else None

    def forget(self, name: str) -> None:
        path = self._path(name)
        with contextlib.suppress(OSError):
            # In place, so that a file system that writes in place does not keep it either.
            with open(path, "r+b") as file:
                file.write(bytes(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            path.unlink()
            self._sync()

    def rename(self, name: str, to: str) -> None:
        self._path(name).replace(self._path(to))
        self._sync()

    def names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._directory))
        except OSError:
            return []

    def _path(self, name: str) -> Path:
        return self._directory / check_token(name, "name of a key")

    def _sync(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class DerivedKeys:
    """Keys that every control host of a cluster derives from the cluster's own secret.

    Any of them can therefore start any job. A key cannot be destroyed on its own: what was encrypted with it
    can be read as long as somebody has the cluster's secret and a copy of the bus's files.
    """

    def __init__(self, derive: Callable[[str], bytes]) -> None:
        self._derive = derive

    def make(self, name: str) -> bytes:
        return self._derive(check_token(name, "name of a key"))

    def get(self, name: str) -> bytes | None:
        return self.make(name)

    def forget(self, name: str) -> None:
        """Nothing is kept for one name."""

    def rename(self, name: str, to: str) -> None:
        """Nothing is kept for one name."""

    def names(self) -> list[str]:
        return []


class KeysInMemory:
    """For a bus that is in memory too: what is stored there ends with the process."""

    def __init__(self) -> None:
        self._keys: dict[str, bytes] = {}

    def make(self, name: str) -> bytes:
        return self._keys.setdefault(name, secrets.token_bytes(KEY_BYTES))

    def get(self, name: str) -> bytes | None:
        return self._keys.get(name)

    def forget(self, name: str) -> None:
        self._keys.pop(name, None)

    def rename(self, name: str, to: str) -> None:
        self._keys[to] = self._keys.pop(name)

    def names(self) -> list[str]:
        return sorted(self._keys)


IN_MEMORY = KeysInMemory()
"""Shared by all weavers of a process that were given no other."""
