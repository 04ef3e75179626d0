"""Gives a worker less of a core than it wants, by the kernel's own quota (the cpu controller of cgroups).

The group is made below the worker's own, so that nothing it had to obey is lost, and is gone with the fault.
Only the worker's process is put there, not children it has already. A host that does not let us is told of.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from torchloom.agent.host import LocalWorker
from torchloom.agent.observe.cgroups import ROOT, cpu_group
from torchloom.agent.processes.process import is_alive, start_ticks
from torchloom.errors import Conflict

PERIOD_US = 20_000
"""Short against a training step: with the kernel's usual 100 ms a step would be either hit or not."""
_LOOK_S = 0.1
_LOOKS_AT_ITS_END = 100


class Quota:
    """One worker under a quota, from `__init__` to `lift`."""

    def __init__(self, pid: int, percent: float, name: str, root: Path = ROOT) -> None:
        """Raises Conflict where the host does not let us."""
        quota_us = max(1000, int(PERIOD_US * percent / 100))
        self._pid, self._ticks = pid, start_ticks(pid)
        found = cpu_group(pid, root)
        if found is None:
            raise Conflict(
                "the worker does not run any more, or this host has no cgroups",
                hint="the fault `contention` needs none",
            )
        self._home, version = found
        self._group = self._home / f"loom-fault-{name}"
        try:
            if version == 2 and "cpu" not in (self._home / "cgroup.subtree_control").read_text().split():
                (self._home / "cgroup.subtree_control").write_text("+cpu")
            self._group.mkdir(exist_ok=True)
            if version == 2:
                (self._group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
            else:
                (self._group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (self._group / "cpu.cfs_quota_us").write_text(str(quota_us))
            (self._group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            with contextlib.suppress(OSError):
                self._group.rmdir()
            raise Conflict(
                f"this host lets no CPU quota be set ({error.strerror})",
                hint="the fault `contention` needs no rights",
            ) from error

    @property
    def over(self) -> bool:
        """The worker has ended, and its pid may be somebody else's."""
        return not is_alive(self._pid, self._ticks)

    def lift(self) -> bool:
        """Back where it was. A worker that has ended needs nothing more. Whether nothing of it is left: the
        kernel keeps a group as long as somebody who ends is in it."""
        if not self.over:
            with contextlib.suppress(OSError):
                (self._home / "cgroup.procs").write_text(str(self._pid))
        with contextlib.suppress(OSError):
            self._group.rmdir()
        return not self._group.exists()


async def hold(worker: LocalWorker, quota: Quota, lasting_s: float) -> None:
    """Until its time is over or the worker is ended."""
    try:
        async with asyncio.timeout(lasting_s):
            while not worker.ending and not quota.over:
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        pass
    finally:
        gone = quota.lift()
    for _ in range(_LOOKS_AT_ITS_END):
        if gone:
            return
        await asyncio.sleep(_LOOK_S)
        gone = quota.lift()
