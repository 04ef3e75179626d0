"""Which host uses a home: a home on a network file system is seen by many, and belongs to one at a time.

Owns the supervisor's lock and the record of its host, which it renews while it lives. On a local disk, which
containers may share, the lock says whether it lives. Network file systems may have no locks, or each host its
own: there a record that was not renewed for a while says that its host is gone. A host is the same as long as
its kernel runs, also under another name, and after a restart if it has the same name.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torchloom.errors import Conflict, HomeUnusable
from torchloom.home import Home

RENEWED_WITHIN_S = 30.0
"""Supervisors renew it every 5 s."""
LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "tmpfs"})
"""File systems whose locks hold for everybody who sees them."""


@dataclass(frozen=True)
class Elsewhere:
    """Another host that uses the home."""

    host: str
    seen_s: float

    def error(self, home: Home) -> Conflict:
        own = os.uname().nodename.partition(".")[0]
        return Conflict(
            f"{home.root} is in use on host {self.host}, last sign of life {max(0.0, self.seen_s):.0f} s ago",
            hint=f"use torchloom there, or give this host a home of its own: LOOM_HOME={home.root}-{own}",
        )


def claim(home: Home) -> None:
    """This host uses the home from now on."""
    new = _record(home).with_suffix(f".{os.getpid()}")
    with suppress(OSError):  # on a full disk the others do not see it
        new.write_text(json.dumps(_this_host()))
        new.replace(_record(home))


def renew(home: Home) -> None:
    with suppress(OSError):
        os.utime(_record(home))


def release(home: Home) -> None:
    if elsewhere(home) is None:
        _record(home).unlink(missing_ok=True)


def elsewhere(home: Home) -> Elsewhere | None:
    """The other host that uses this home now, if there is one."""
    try:
        with open(_record(home)) as file:  # opening it also makes a network file system look anew
            found = json.load(file)
            host, boot, processes = str(found["host"]), found.get("boot"), found.get("processes")
            renewed_s = os.fstat(file.fileno()).st_mtime
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    ours = _this_host()
    if (boot, processes) == (ours["boot"], ours["processes"]) or (
        host == ours["host"] and boot != ours["boot"]
    ):
        return None
    seen_s = _now_s(home) - renewed_s
    lives = _is_locked(lock_file(home)) or (seen_s < RENEWED_WITHIN_S and not _is_local(home.parts_dir))
    return Elsewhere(host, seen_s) if lives else None


def refuse_elsewhere(home: Home) -> None:
    """Raises Conflict if another host uses this home now."""
    if (other := elsewhere(home)) is not None:
        raise other.error(home)


def _this_host() -> dict[str, object]:
    """Containers of one machine have a kernel in common and see different processes."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"host": os.uname().nodename, "boot": boot, "processes": os.stat("/proc/self/ns/pid").st_ino}


def lock_file(home: Home) -> Path:
    """What the supervisor of a home locks."""
    return home.parts_dir / "supervisor.lock"


def take_lock(home: Home, wait_s: float) -> int | None:
    """The lock to supervise this home, held until the descriptor closes; None if another process has it.
    Raises HomeUnusable where there are no locks."""
    lock = os.open(lock_file(home), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(lock)
                return None
            time.sleep(0.01)
        except OSError as error:
            os.close(lock)
            raise HomeUnusable(
                f"{home.root} is on a file system without locks ({error.strerror})",
                hint="set LOOM_HOME to a directory on a disk of this host",
            ) from error


def _record(home: Home) -> Path:
    return home.parts_dir / "host.json"


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _is_local(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    try:
        device = os.stat(path).st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        for line in mounts.read_text(errors="replace").splitlines():
            mount, _, kind = line.partition(" - ")
            if mount.split()[2] == wanted:
                return kind.split()[0] in LOCAL
    except (OSError, IndexError):
        pass
    return False


def _now_s(home: Home) -> float:
    """By the clock that dates the files there, which may be a server's."""
    path = home.parts_dir / f".now-{os.getpid()}"
    try:
        path.touch(0o600)
        os.utime(path)
        return path.stat().st_mtime
    except OSError:  # read-only here, or full
        return time.time()
    finally:
        with suppress(OSError):
            path.unlink()
