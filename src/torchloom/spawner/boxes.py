"""Creation of black boxes: the journal that makes a start idempotent.

The file is created O_EXCL and filled before the fork; whoever finds it there knows that this worker was
started before, and by which pid. This module neither forks nor reads what the probe writes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchloom.private import make_private
from torchloom.wire import blackbox
from torchloom.wire.blackbox import Header, Life

_NO_ROOM = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.ENOENT, errno.EPERM}
)
"""Reasons to try the next place; the last is a directory that a neighbour made under our name."""


@dataclass(frozen=True)
class BoxJournal:
    """What an existing box records about an earlier start."""

    path: Path
    pid: int
    """0 when the box was made but no process ever followed."""
    start_ticks: int


class NewBox:
    """A new box, mapped and filled. Its mapping survives the fork: the child signs in through it."""

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        self.path = path
        self._mapping = mapping
        self._buffer = memoryview(mapping)
        self._view = blackbox.View(self._buffer)

    def sign(self, pid: int, start_ticks: int) -> None:
        """Name the process. Parent and child both do it, with the same values, so no order can go wrong."""
        self._view.set_header(Header.START_TICKS, start_ticks)
        self._view.set_header(Header.PID, pid)

    def mark_forked(self) -> None:
        """Only the child writes this: the parent could overwrite a later state written by the probe."""
        self._view.set_header(Header.LIFE, Life.FORKED)

    def close(self) -> None:
        self._view.words.release()
        self._buffer.release()
        self._mapping.close()

    def discard(self) -> None:
        """Nothing was started after all."""
        self.close()
        with contextlib.suppress(OSError):
            self.path.unlink()


def start_ticks(pid: int | str = "self") -> int:
    """Field 22 of /proc/<pid>/stat: with pid and boot id it names a process for good. 0 when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    return int(stat.rpartition(b")")[2].split()[19])


def candidates(spec: Mapping[str, Any]) -> list[Path]:
    """Where this worker's box may be: the requested path, then the fallback (a directory or a path)."""
    if not spec.get("box"):
        return []
    first = Path(spec["box"])
    paths = [first]
    if spec.get("box_fallback"):
        fallback = Path(spec["box_fallback"])
        paths.append(fallback / first.name if fallback.is_dir() else fallback)
    return paths


def find(spec: Mapping[str, Any]) -> BoxJournal | None:
    """The journal of an earlier start of the same worker, if there is one."""
    for path in candidates(spec):
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
                if len(mapping) < blackbox.SIZE:
                    return BoxJournal(path, 0, 0)
                with memoryview(mapping) as buffer, buffer.cast("Q") as words:
                    return BoxJournal(path, words[Header.PID], words[Header.START_TICKS])
        except FileNotFoundError:
            continue
        except (OSError, ValueError):  # ValueError: an empty file, made by somebody who died right then
            return BoxJournal(path, 0, 0)
    return None


def fence_of(path: str) -> tuple[int, int]:
    """The limit and the deadline of a worker that must end when its host is cut off; (0, 0) for others."""
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(blackbox.FENCE.at)
            limit_ns, until_ns = struct.unpack("<2Q", file.read(16))
    except (OSError, struct.error):
        return 0, 0
    return blackbox.fence_words(limit_ns, until_ns)


def create(spec: Mapping[str, Any], identity: Mapping[str, Any]) -> tuple[NewBox | None, list[str]]:
    """A filled box, or None when there is room nowhere; and a sentence for each place that had none.

    Raises FileExistsError when somebody created it since `find`.
    """
    notes: list[str] = []
    for path in candidates(spec):
        try:
            box = NewBox(path, _allocate(path))
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            notes.append(f"no black box at {path}: {error.strerror}")
            continue
        try:
            _fill(box._view, spec, identity)
        except BaseException:
            box.discard()  # a box without a process would make a second start refuse
            raise
        return box, notes
    return None, notes


def _allocate(path: Path) -> mmap.mmap:
    make_private(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # A sparse file on a full tmpfs would be a SIGBUS in the worker; this fails here and now instead.
        os.posix_fallocate(descriptor, 0, blackbox.SIZE)
        return mmap.mmap(descriptor, blackbox.SIZE)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(descriptor)


def _fill(view: blackbox.View, spec: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    boot_id = int(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""), 16)
    values = {
        Header.LAYOUT: blackbox.LAYOUT_VERSION,
        Header.SIZE: blackbox.SIZE,
        Header.BOOT_ID_HIGH: boot_id >> 64,
        Header.BOOT_ID_LOW: boot_id & blackbox.MASK,
        Header.PID_NAMESPACE: os.stat("/proc/self/ns/pid").st_ino,
        Header.INCARNATION: int(spec.get("incarnation") or 0),
        Header.GENERATION: int(spec.get("generation") or 0),
        Header.RANK: int(spec.get("rank") or 0),
        Header.WORLD_SIZE: int(spec.get("world_size") or 1),
        Header.LOCAL_RANK: int(spec.get("local_rank") or 0),
        Header.REALTIME_NS: time.time_ns(),
        Header.MONOTONIC_NS: time.monotonic_ns(),
        Header.LIFE: Life.CREATED,
    }
    for index, value in values.items():
        view.set_header(index, value)
    view.write_blob(blackbox.IDENTITY, _identity_text(identity))
    schedule = str(spec.get("schedule") or "").encode()
    if schedule:
        view.write_blob(blackbox.SCHEDULE, schedule)
    secret = str(spec.get("store_secret") or "").encode()
    if secret:
        view.write_blob(blackbox.STORE_SECRET, secret)
    if spec.get("fence"):
        limit_ns, until_ns = spec["fence"]
        view.set_fence(int(limit_ns), int(until_ns))
    view.set_header(Header.MAGIC, blackbox.MAGIC)


def _identity_text(identity: Mapping[str, Any]) -> bytes:
    """JSON that fits: an endless argv gives way first, then everything but the names."""
    for kept in (identity, {**identity, "argv": ["…"], "command": None}, {"job": identity.get("job")}):
        text = json.dumps(kept).encode()
        if len(text) <= blackbox.IDENTITY.capacity:
            return text
    return b"{}"
