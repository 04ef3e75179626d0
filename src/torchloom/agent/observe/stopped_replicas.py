"""Sees within a quarter of a second that a worker of a torchft replica is stopped, so that the others go on.

Windows see it, too, for every worker, but twice a second: too slow for survivors that wait in a collective.
Only workers of replicas are looked at here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass

from torchloom.agent.host import Host, LocalWorker
from torchloom.agent.observe import kernel, kernel_waits

LOOK_EVERY_S = 0.05
STOPPED_FOR_S = 0.2
"""A snapshot stops a process for a moment, and what limits CPU use (cpulimit) does so every 0.1 s: neither
counts as stopped."""
FEWEST_LOOKS = 4


@dataclass
class _Stop:
    since_s: float
    cpu_ns: int
    looks: int = 1


class StoppedProcesses:
    """Which of some processes have been stopped without a break."""

    def __init__(self) -> None:
        self._stops: dict[int, _Stop] = {}

    def look(self, pids: Iterable[int], now_s: float) -> list[int]:
        """Those that have been stopped for long enough, at every look anew."""
        stops, found = self._stops, []
        self._stops = {}
        for pid in pids:
            if kernel.state_of(pid) != "T" or (counts := kernel.counts(pid)) is None or counts.state != "T":
                continue
            stop = stops.get(pid)
            if stop is None or stop.cpu_ns != counts.cpu_ns:  # it has run in between
                stop = _Stop(now_s, counts.cpu_ns, 0)
            stop.looks += 1
            self._stops[pid] = stop
            if stop.looks >= FEWEST_LOOKS and now_s - stop.since_s >= STOPPED_FOR_S:
                found.append(pid)
        return found


async def watch(host: Host) -> None:
    """Report the stopped ones to their lighthouse, which leaves them out until they continue."""
    processes = StoppedProcesses()
    reported: dict[int, float] = {}
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        replicas: dict[int, LocalWorker] = {
            worker.pid: worker for worker in host.running() if host.lighthouses.serves(worker.ref)
        }
        now_s = time.monotonic()
        stopped = processes.look(replicas, now_s)
        reported = {pid: at_s for pid, at_s in reported.items() if pid in stopped}
        for pid in stopped:
            # Again from time to time: a heartbeat that was under way may have brought it back.
            if now_s - reported.get(pid, 0.0) >= 0.5 and not kernel_waits.tracer(pid):
                reported[pid] = now_s
                host.lighthouses.gone(replicas[pid].ref.job, replicas[pid].ref.generation)
