"""Xid errors of NVIDIA's driver from the kernel's log, and beside them those that NVML reported. Best effort:
without permission to read the log only NVML's are known.

Reads /dev/kmsg, which gives one record a read and never blocks here, or the file that LOOM_KERNEL_LOG names.
What came before the agent started is left out. Decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import stat
import time
from collections import deque
from collections.abc import Collection
from pathlib import Path

from torchloom.core.device_faults.xids import read_line
from torchloom.model.device_faults import Xid

log = logging.getLogger(__name__)

KMSG = Path("/dev/kmsg")
LOOK_EVERY_S = 1.0
KEPT = 64
_RECORD_BYTES = 8192
_MOST_RECORDS = 4096
"""In one look: a kernel that writes faster than this is looked at again a second later."""
_RECENT_NS = 60 * 10**9
"""An error this long before an end may be its cause."""
_MOST_TOLD = 8


class KernelLog:
    """The newest Xid errors of this host."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or Path(os.environ.get("LOOM_KERNEL_LOG") or KMSG)
        self._fd = -1
        self._rest = b""
        self._file = False
        self._found: deque[Xid] = deque(maxlen=KEPT)
        self._told: deque[Xid] = deque(maxlen=KEPT)
        """Those that NVML reported; the log may have them too, or nobody may read it."""
        self.count = 0
        """How many were found so far."""
        self.why = ""
        """Why the log cannot be read, if it cannot."""
        self._open(at_end=True)

    async def run(self) -> None:
        """Look periodically, until cancelled: the kernel's ring may overwrite what is not read."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()

    def look(self) -> None:
        """Take in what is new. Never blocks and never raises."""
        try:
            if self._fd < 0 and self._path == KMSG:
                return  # nobody may read it, and that does not change
            if self._fd < 0 or (self._file and self._replaced()):
                self._open(at_end=False)
            for _ in range(_MOST_RECORDS if self._fd >= 0 else 0):
                if not self._read():
                    return
        except OSError as error:
            self._close(error)

    def of(self, pid: int, pci: Collection[str] = ()) -> tuple[Xid, ...]:
        """Those that may have to do with a process that has just ended: of its devices, or under its pid."""
        self.look()
        since_ns = time.time_ns() - _RECENT_NS
        known = {(x.code, x.pci) for x in self._found if x.at_ns >= since_ns}
        told = [x for x in self._told if (x.code, x.pci) not in known]
        recent = [x for x in (*told, *self._found) if x.at_ns >= since_ns]
        mine = [x for x in recent if x.pci in pci or (x.pid and x.pid == pid)]
        if not pci:
            # Which device it used is not known, and a pid may be that of another namespace.
            mine = mine or [x for x in recent if not x.pid]
        return tuple(mine[-_MOST_TOLD:])

    def told(self, code: int, pci: str) -> None:
        """NVML reported an error of the device at this address."""
        self._told.append(Xid(code=code, pci=pci, text="reported by NVML", at_ns=time.time_ns()))

    def newest(self, seen: int) -> list[Xid]:
        """Those after the first `seen`, as far as they are kept."""
        return list(self._found)[max(0, len(self._found) - (self.count - seen)) :]

    def _open(self, at_end: bool) -> None:
        self._close(None)
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._file = stat.S_ISREG(os.fstat(self._fd).st_mode)
            if at_end:
                os.lseek(self._fd, 0, os.SEEK_END)
            self.why = ""
        except OSError as error:
            self._close(error)

    def _read(self) -> bool:
        """One record of the kernel's, or a piece of a file; whether there may be more."""
        try:
            data = os.read(self._fd, _RECORD_BYTES)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the ring has overwritten what was next
                return True
            if error.errno in (errno.EAGAIN, errno.EINTR):
                return False
            raise
        if not data:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-_RECORD_BYTES:]
        at_ns = time.time_ns()
        for line in lines:
            xid = read_line(line.decode("utf-8", "replace"), at_ns) if b"Xid" in line else None
            if xid is not None:
                log.warning("the driver reports Xid %d of the GPU at %s: %s", xid.code, xid.pci, xid.text)
                self._found.append(xid)
                self.count += 1
        return True

    def _replaced(self) -> bool:
        """The file was rotated or cut."""
        here = os.fstat(self._fd)
        with contextlib.suppress(FileNotFoundError):
            there = os.stat(self._path)
            return there.st_ino != here.st_ino or there.st_size < os.lseek(self._fd, 0, os.SEEK_CUR)
        return False

    def _close(self, error: OSError | None) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._rest = -1, b""
        why = f"{self._path} cannot be read ({error.strerror})" if error is not None else ""
        if why and why != self.why:
            log.info("no Xid errors from the kernel's log: %s", why)
        self.why = why or self.why

    def close(self) -> None:
        self._close(None)
