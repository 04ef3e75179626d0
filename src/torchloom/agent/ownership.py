"""Whose the directories in shared memory are, and the removal of those whose owner was killed.

An agent that is killed together with its workers, as Slurm does at the end of a step, leaves black boxes and
states in memory behind. Each agent therefore holds a lock in its directory, which the kernel releases when
the agent ends, however it ends. The next agent of the same user removes a directory only if nobody holds the
lock, no process uses a file of it, no spawner lives, and no later agent can have a use for it: its home is
gone, or its agent said that its host ends with it. Age proves nothing and is not looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import shutil
from pathlib import Path

from torchloom.agent.observe import boxes
from torchloom.agent.processes.process import is_alive, pid_namespace
from torchloom.errors import BlackBoxDamaged
from torchloom.home import Home, private_directory
from torchloom.private import make_private, why_not_private

log = logging.getLogger(__name__)

OWNER = "owner"
SHARED_MEMORY = Path("/dev/shm")
_TRIES, _AGAIN_S = 40, 0.05


class Claim:
    """An agent's right to its directory in shared memory; released by the kernel if the agent is killed."""

    def __init__(self, home: Home, *, once: bool) -> None:
        self._home, self._once = home, once
        self._path = home.boxes / OWNER
        self._lock: int | None = None

    async def take(self) -> None:
        """Make our directories and lock them. Without shared memory there is nothing to lock."""
        private_directory(self._home.sockets)
        if self._path.parent == self._home.boxes_fallback:
            return
        for _ in range(_TRIES):
            try:
                make_private(self._path.parent)
                lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except FileNotFoundError:  # just removed by another agent's sweep
                continue
            except OSError as error:
                log.warning("%s cannot be made: %s", self._path, error.strerror)
                return
            if _locked(lock, self._path):
                os.ftruncate(lock, 0)
                os.write(lock, json.dumps(self._record()).encode())
                self._lock = lock
                return
            os.close(lock)
            await asyncio.sleep(_AGAIN_S)  # another agent looks whether it is abandoned
        log.warning("%s is locked by another process; this directory may stay behind", self._path)

    def _record(self) -> dict[str, object]:
        return {
            "home": str(self._home.root),
            "sockets": str(self._home.sockets),
            "pid_namespace": pid_namespace(),
            "once": self._once,
        }

    def release(self, *, keep: bool) -> None:
        """Give the lock back. `keep`: the next agent of this home continues with what is there."""
        if self._lock is not None:
            if not keep:
                self._path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None


def forget(home: Home) -> None:
    """Remove our mark from a directory that is empty otherwise, unless an agent uses it."""
    path = home.boxes / OWNER
    with contextlib.suppress(OSError):
        if os.listdir(path.parent) == [OWNER]:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if _locked(lock, path):
                    path.unlink()
            finally:
                os.close(lock)


def sweep(own: Home | None = None) -> list[Path]:
    """Remove what killed agents of this user left in shared memory, with their sockets; return the paths."""
    removed = []
    for directory in sorted(SHARED_MEMORY.glob(f"loom-{os.getuid()}-*")):
        if (own is not None and directory == own.boxes) or why_not_private(directory):
            continue
        with contextlib.suppress(OSError):
            if _remove_abandoned(directory):
                removed.append(directory)
    return removed


def _remove_abandoned(directory: Path) -> bool:
    try:
        lock = os.open(directory / OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False  # of an older version, or just being made
    try:
        if not _locked(lock, directory / OWNER):
            return False
        said = _read(lock)
        if said is None or said.get("pid_namespace") != pid_namespace():
            return False  # we do not see its processes
        sockets = _sockets(directory, said)
        if not _useless(said) or _spawner_lives(sockets) or _in_use(directory):
            return False
        log.info("%s is removed: the agent of %s was killed", directory, said.get("home"))
        shutil.rmtree(directory, ignore_errors=True)
        if sockets is not None:
            shutil.rmtree(sockets, ignore_errors=True)
        return not directory.exists()
    finally:
        os.close(lock)


def _locked(descriptor: int, path: Path) -> bool:
    """Take the lock; whether we have it and the file is still the one with that name."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ours, named = os.fstat(descriptor), os.lstat(path)
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)


def _read(descriptor: int) -> dict[str, object] | None:
    try:
        said = json.loads(os.pread(descriptor, 65_536, 0))
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def _useless(said: dict[str, object]) -> bool:
    """Whether no later agent can continue with it. A directory that cannot be looked at may come back."""
    if said.get("once") is True:
        return True
    try:
        os.stat(str(said["home"]))
    except FileNotFoundError:
        return True
    except (OSError, KeyError, ValueError):
        return False
    return False


def _sockets(directory: Path, said: dict[str, object]) -> Path | None:
    """The directory of the same home's sockets, if it is one of ours by name and owner."""
    path = Path(str(said.get("sockets", "")))
    ours = path.is_absolute() and path.name == directory.name and path.is_dir() and not why_not_private(path)
    return path if ours else None


def _spawner_lives(sockets: Path | None) -> bool:
    for path in sockets.glob("*.lock") if sockets is not None else ():
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
    return False


def _in_use(directory: Path) -> bool:
    """Whether a worker lives that a black box names, or a process has a file of the directory mapped."""
    if any(_worker_lives(path) for path in directory.glob(f"*{boxes.SUFFIX}")):
        return True
    mark = f"{directory}/"
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # ended meanwhile, or none that we may look into
            if entry.name.isdecimal() and mark in (entry / "maps").read_text(errors="replace"):
                return True
    return False


def _worker_lives(path: Path) -> bool:
    try:
        box = boxes.ReadableBox.open(path)
    except BlackBoxDamaged:
        return False
    try:
        return box.pid_namespace not in (0, pid_namespace()) or is_alive(box.pid, box.start_ticks)
    except BlackBoxDamaged:
        return False
    finally:
        box.close()
