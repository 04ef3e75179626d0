"""Facts about processes from the kernel: who a pid really is, whether it lives, how it ended; and signals.

A process is named by boot id, pid and start time, never by its pid alone. It is held through a pidfd, which
can neither be recycled nor be blocked by a parent that does not reap. This module starts and waits for
nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
from dataclasses import dataclass, field
from pathlib import Path

_PIDFD_GET_INFO = 0xC040FF0B
"""_IOWR(0xFF, 11, 64 bytes); Linux 6.13, exit status since 6.15."""
_INFO_EXIT = 1 << 3
_SIGNAL_PROCESS_GROUP = 1 << 2
"""Flag of pidfd_send_signal since Linux 6.9: reaches the group even after its leader was reaped."""


def boot_id() -> int:
    """Identity of this boot of the kernel: pids and start times mean something only within it."""
    return int(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""), 16)


def pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the state on (field 3), or none when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    # The command in brackets may hold spaces and brackets: count from its end.
    return text.rpartition(")")[2].split()


def start_ticks(pid: int) -> int:
    """Start time in clock ticks since boot, 0 when there is no such process."""
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def is_alive(pid: int, ticks: int) -> bool:
    """Whether exactly this process runs. A zombie is dead."""
    fields = _stat(pid)
    return len(fields) > 19 and int(fields[19]) == ticks and fields[0] not in "ZX"


@dataclass(frozen=True)
class Status:
    """How a process ended, as the kernel says: exactly one is set."""

    code: int | None
    signal: int | None


def _decode(status: int) -> Status:
    killed_by = status & 0x7F
    return Status(None, killed_by) if killed_by else Status(status >> 8 & 0xFF, None)


@dataclass(eq=False)
class Process:
    """One process held by its pidfd. `fd` is readable when it has ended; -1 when no pidfd can be had."""

    pid: int
    start_ticks: int
    fd: int
    _closed: bool = field(default=False, repr=False)

    @classmethod
    def open(cls, pid: int, ticks: int) -> Process | None:
        """Hold this process, alive or zombie; None when it is gone or the pid is somebody else's now."""
        if pid <= 0:
            return None
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        except OSError:  # too many files, or a sandbox that forbids it: no reason to call a process dead
            fd = -1
        held = cls(pid, ticks, fd)
        if start_ticks(pid) != ticks:  # looked at only once the pidfd pins the pid
            held.close()
            return None
        return held

    @property
    def alive(self) -> bool:
        return not self._closed and is_alive(self.pid, self.start_ticks)

    def status(self) -> Status | None:
        """How it ended, if the kernel (still) knows: a zombie by its stat, a reaped process by its pidfd."""
        fields = _stat(self.pid)
        if len(fields) > 49 and int(fields[19]) == self.start_ticks:
            return _decode(int(fields[49])) if fields[0] == "Z" else None
        if self.fd < 0:
            return None
        info = bytearray(64)
        struct.pack_into("Q", info, 0, _INFO_EXIT)
        try:
            fcntl.ioctl(self.fd, _PIDFD_GET_INFO, info)
        except OSError:  # an older kernel
            return None
        (mask,) = struct.unpack_from("Q", info, 0)
        (status,) = struct.unpack_from("i", info, 60)
        return _decode(status) if mask & _INFO_EXIT else None

    def signal_alone(self, number: int) -> None:
        """Signal this process alone."""
        try:
            if self.fd >= 0:
                signal.pidfd_send_signal(self.fd, number)
            elif self.alive:
                os.kill(self.pid, number)
        except ProcessLookupError:
            pass

    def signal_group(self, number: int) -> None:
        """Signal the process and everything in its process group, e.g. data-loader workers."""
        if self.fd < 0:
            self._signal_group_by_number(number)
            return
        try:
            signal.pidfd_send_signal(self.fd, number, None, _SIGNAL_PROCESS_GROUP)
        except ProcessLookupError:
            return
        except OSError as error:
            if error.errno != errno.EINVAL:
                return
            self._signal_group_by_number(number)

    def _signal_group_by_number(self, number: int) -> None:
        """Before Linux 6.9, or without a pidfd: only while the leader is there, if only as a zombie.

        Its number cannot be another's then. What a leader that was reaped at once leaves behind is missed.
        """
        try:
            if start_ticks(self.pid) == self.start_ticks and os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, number)
        except ProcessLookupError:
            pass

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self.fd >= 0:
                os.close(self.fd)
