"""A checkpoint store in a directory.

Owns durability on a file system: every object is written to a temporary file beside its place, synced, moved
there in one step, and the directory synced; directories that had to be made are synced into their parents. A
create-only object gets its name by `link`, which fails if the name is taken. A process killed in between
leaves at most a temporary file, whose name begins with `.tmp-` and which the catalogue's sweep removes.

Where the file system has no hard links, the temporary file is moved to its name only if that is free (Linux'
`renameat2`). Where that is not possible either, a create-only object is written in place under O_EXCL. It may
then be seen half written; those we write carry a checksum of themselves (see manifest.py), so half is as good
as none.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from torchloom.checkpoint.store.names import TEMPORARY
from torchloom.checkpoint.store.points import at
from torchloom.checkpoint.store.storage import Bytes, Stored, check_key
from torchloom.errors import CheckpointError, CheckpointMissing, StorageFailed, StorageFull, StoreUnreachable

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_AWAY = {
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ENOTCONN,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
}
"""A file system whose server does not answer."""
_FULL = {errno.ENOSPC, errno.EDQUOT}
_HERE, _NO_REPLACE = -100, 1
"""AT_FDCWD and RENAME_NOREPLACE of Linux."""
_BUFFERS_AT_ONCE = 512
"""Of one read; the kernel takes 1024 at most."""
_HINTS = {
    errno.ENOSPC: ("the disk is full", "free space or lower the number of checkpoints kept"),
    errno.EDQUOT: ("the disk quota is used up", "free space or lower the number of checkpoints kept"),
    errno.EROFS: ("the file system is read-only", "mount it writable or choose another CHECKPOINT_DIR"),
    errno.EACCES: ("permission is denied", "give the job's user the right to write there"),
    errno.EPERM: ("the operation is not permitted", "give the job's user the right to write there"),
    errno.ENOTDIR: ("a file is where a directory must be", "choose another CHECKPOINT_DIR"),
}


class LocalStorage:
    """Objects as files under `root`, which is made when the first object is written."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(os.path.abspath(os.path.expanduser(root)))
        self._durable: set[Path] = set()
        """Directories that are known to be durable in their parents."""

    reads_at_once = 4

    @property
    def where(self) -> str:
        return str(self._root)

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        path = self._path(key)
        with self._errors("write", key):
            temporary = self._write_temporary(path, chunks)
            try:
                os.replace(temporary, path)
            except OSError:
                _unlink(temporary)
                raise
            at("put.renamed")
            _sync_directory(path.parent)
            at("put.durable")

    def put_new(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        with self._errors("write", key):
            temporary = self._write_temporary(path, [data])
            try:
                created = _link(temporary, path, data)
                at("new.linked")
            finally:
                _unlink(temporary)
            # Also when the name was taken: its owner may have died before making it durable.
            _sync_directory(path.parent)
            at("new.durable")
            return created

    def get(self, key: str) -> bytes:
        with self._errors("read", key):
            return self._path(key).read_bytes()

    def read_scattered(self, key: str, start: int, buffers: Sequence[memoryview]) -> int:
        left, at = deque(buffer for buffer in buffers if len(buffer)), start
        with self._errors("read", key), open(self._path(key), "rb", buffering=0) as file:
            while left:
                count = os.preadv(file.fileno(), list(islice(left, _BUFFERS_AT_ONCE)), at)
                if not count:
                    break
                at += count
                while left and count >= len(left[0]):
                    count -= len(left.popleft())
                if count:
                    left[0] = left[0][count:]
        return at - start

    def list(self, prefix: str) -> list[Stored]:
        found: list[Stored] = []
        with self._errors("list", prefix):
            top = self._path(prefix.rstrip("/"))
            for directory, _, files in os.walk(top, onerror=_raise_unless_gone):
                above = os.path.relpath(directory, self._root).replace(os.sep, "/")
                for name in files:
                    with suppress(FileNotFoundError):  # removed while we look
                        facts = os.stat(os.path.join(directory, name))
                        found.append(Stored(f"{above}/{name}", facts.st_size, facts.st_mtime))
        return sorted(found, key=lambda stored: stored.key)

    def delete(self, key: str) -> None:
        path = self._path(key)
        # Other ranks and the sweep delete here too: the file or its whole directory may be gone first.
        with self._errors("delete", key), suppress(FileNotFoundError):
            path.unlink()
            _sync_directory(path.parent)
            self._remove_empty(path.parent)

    def size(self, key: str) -> int | None:
        with self._errors("read", key):
            try:
                return self._path(key).stat().st_size
            except FileNotFoundError:
                return None

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _write_temporary(self, path: Path, chunks: Iterable[Bytes]) -> Path:
        """A whole, synced file beside `path`; removed again if anything fails on the way."""
        temporary = path.parent / f"{TEMPORARY}{secrets.token_hex(6)}"
        file = self._open_new(temporary)
        try:
            with os.fdopen(file, "wb", buffering=0) as out:
                at("put.opened")
                for chunk in chunks:
                    view = memoryview(chunk).cast("B")
                    while len(view):
                        view = view[out.write(view) :]
                    at("put.chunk")
                os.fsync(out.fileno())
        except BaseException:
            _unlink(temporary)
            raise
        at("put.synced")
        return temporary

    def _open_new(self, path: Path) -> int:
        """Open a file of a new name; a directory that a sweep took away meanwhile is made again."""
        for _ in range(8):
            with suppress(FileNotFoundError):
                self._make_directory(path.parent)
                return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        raise FileNotFoundError(errno.ENOENT, "the directory is removed again and again", str(path.parent))

    def _make_directory(self, directory: Path) -> None:
        """Make a directory and those above it, each durable in its parent. One below the root that is there
        already may have been made by a process that died before it had synced it."""
        there = directory.is_dir()
        if there and (directory in self._durable or not directory.is_relative_to(self._root)):
            return
        if directory != directory.parent:
            self._make_directory(directory.parent)
        if not there:
            with suppress(FileExistsError):
                directory.mkdir()
        with suppress(PermissionError):  # above the root, where we need no rights
            _sync_directory(directory.parent)
        self._durable.add(directory)

    def _remove_empty(self, directory: Path) -> None:
        while directory != self._root:
            try:
                directory.rmdir()
                self._durable.discard(directory)
            except OSError:  # not empty, or gone: either way no business of ours
                return
            directory = directory.parent

    @contextmanager
    def _errors(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except CheckpointError:
            raise
        except FileNotFoundError as error:
            if verb == "write":  # our own temporary file or directory: somebody else took it away
                raise StorageFailed(f"{self._root / key} was removed while being written") from error
            raise CheckpointMissing(f"{self._root / key} does not exist") from error
        except OSError as error:
            why, hint = _HINTS.get(error.errno or 0, (error.strerror or str(error), ""))
            kind = StoreUnreachable if error.errno in _AWAY else StorageFailed
            kind = StorageFull if error.errno in _FULL else kind
            raise kind(f"could not {verb} {self._root / key}, because {why}", hint=hint) from error


def _link(temporary: Path, path: Path, data: bytes) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        # Over NFS a link may be made and its answer lost; the repeated request then finds its own work.
        return os.stat(temporary).st_nlink > 1
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        moved = _move_to_new(temporary, path)
        return _write_in_place(path, data) if moved is None else moved
    return True


def _move_to_new(temporary: Path, path: Path) -> bool | None:
    """Move a file to a name that is free; False if it is taken, None if this system cannot do that."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return None
    if not renameat2(_HERE, os.fsencode(temporary), _HERE, os.fsencode(path), _NO_REPLACE):
        return True
    return False if ctypes.get_errno() == errno.EEXIST else None


def _write_in_place(path: Path, data: bytes) -> bool:
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return False
    with os.fdopen(file, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    return True


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system without it reports that
            raise
    finally:
        os.close(descriptor)


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
