"""A directory of shards fetched from afar: bounded, checksummed, shared by all processes of a host.

A shard's file is named by the SHA-256 of its content, so datasets share what they have in common and a name
cannot lie. A file comes into being by rename, whole; it is checked whenever it is asked for, and a damaged
one is fetched again. What was not used for longest goes first when room is needed; a reader that has the file
open keeps it. Locks are flocks on files, which the kernel releases when a process dies:

    NN.lock     held while a shard whose name begins with NN is fetched: others wait instead of fetching too
    room.lock   held, briefly, while room is counted and made, and while a fetched file takes its name: who
                counts sees every file once
    part-…      a file being written, locked by its writer; an unlocked one is a dead writer's and is removed
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchloom.errors import DataDamaged, HomeUnusable, UsageError

_READ_BYTES = 1 << 20
_WAIT_S = 0.05


class Cache:
    """Shards of at most `limit` bytes in `root`. All processes that share it give the same limit."""

    def __init__(self, root: Path, limit: int) -> None:
        self.root, self.limit = root, limit
        with self._explained():
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            owner = root.stat().st_uid
            if owner not in (os.geteuid(), 0):  # its owner could change a shard after it was verified
                raise PermissionError(errno.EPERM, f"it belongs to user {owner}", str(root))

    def get(
        self, digest: str, size: int, fetch: Callable[[], Iterable[bytes]], *, patient: bool = True
    ) -> Path | None:
        """The file with this content, fetched if it is not here or not intact.

        An impatient caller (it only reads ahead) gets None when there is no room at the moment.
        """
        if size > self.limit:
            raise UsageError(
                f"a shard of {size:,} bytes does not fit into a cache of {self.limit:,}",
                hint="give cache_bytes",
            )
        path = self.root / digest
        with self._explained():
            if self._intact(path, digest, size):
                return path
            with self._locked(f"{digest[:2]}.lock"):
                if self._intact(path, digest, size):
                    return path
                return path if self._fetched(path, size, fetch, patient) else None

    def _intact(self, path: Path, digest: str, size: int) -> bool:
        try:
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_size != size:
                    return False
                found = hashlib.sha256()
                while chunk := file.read(_READ_BYTES):
                    found.update(chunk)
                if found.hexdigest() != digest:
                    return False
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def _fetched(self, path: Path, size: int, fetch: Callable[[], Iterable[bytes]], patient: bool) -> bool:
        while (part := self._reserved(size)) is None:
            if not patient:
                return False
            time.sleep(_WAIT_S)
        descriptor, name = part
        found, written = hashlib.sha256(), 0
        try:
            with open(descriptor, "wb") as file:
                for chunk in fetch():
                    written += len(chunk)
                    if written > size:
                        break
                    found.update(chunk)
                    file.write(chunk)
                if written != size or found.hexdigest() != path.name:
                    raise DataDamaged("a shard does not match its index", hint="write the index again")
                file.flush()
                # No fsync: after a power loss the checksum finds damage, and the store has the shard.
                with self._locked("room.lock"):
                    os.rename(name, path)
        except BaseException:
            name.unlink(missing_ok=True)
            raise
        return True

    def _reserved(self, size: int) -> tuple[int, Path] | None:
        """A locked file of that size, if room could be made for it."""
        with self._locked("room.lock"):
            files = list(self._files())
            used = sum(info.st_size for info, _ in files)
            parts = [(info, path) for info, path in files if path.name.startswith("part-")]
            for info, path in parts:
                if self._abandoned(path):
                    used -= info.st_size
            whole = [(info, path) for info, path in files if not path.name.startswith("part-")]
            for info, path in sorted(whole, key=lambda item: item[0].st_mtime_ns):
                if used + size <= self.limit:
                    break
                path.unlink(missing_ok=True)
                used -= info.st_size
            if used + size > self.limit:
                return None
            name = self.root / f"part-{secrets.token_hex(8)}"
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if size:
                    os.posix_fallocate(descriptor, 0, size)
            except BaseException:
                os.close(descriptor)
                name.unlink(missing_ok=True)
                raise
            return descriptor, name

    def _files(self) -> Iterator[tuple[os.stat_result, Path]]:
        for entry in os.scandir(self.root):
            if not entry.name.endswith(".lock"):
                with suppress(FileNotFoundError):  # a writer that failed has just taken its file away
                    yield entry.stat(), Path(entry)

    @staticmethod
    def _abandoned(part: Path) -> bool:
        try:
            descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True  # its writer failed and took it away since we looked
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            part.unlink(missing_ok=True)
            return True
        finally:
            os.close(descriptor)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        descriptor = os.open(self.root / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise HomeUnusable(
                f"the shard cache {self.root} cannot be used ({error.strerror})",
                hint="give a smaller cache_bytes or another cache_dir" if full else "give another cache_dir",
            ) from None
