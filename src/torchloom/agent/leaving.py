"""What an agent does when its host is about to be taken away: a pod that is evicted, an allocation that ends.

Reports it, and lets the control service save the jobs and move them. What still runs shortly before the
time is up is ended here, so that its end is reported and not found missing later. Decides nothing about jobs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time

from torchloom.agent.host import Host, LocalWorker
from torchloom.model.events import NodeLeaving

log = logging.getLogger(__name__)

RESERVE = 0.2
"""Share of the time that is kept for ending the workers and saying so …"""
MOST_RESERVED_S = 10.0
"""… but not more than this."""
LOOK_EVERY_S = 0.1


async def leave(host: Host, within_s: float) -> None:
    """Return when no worker is left, and at the latest when the time is up."""
    begun = time.monotonic()
    if not host.workers and not host.starting:
        return
    reserve_s = min(MOST_RESERVED_S, RESERVE * within_s)
    why = os.environ.get("LOOM_LEAVE_WHY", "") or "its host is being shut down"
    log.info("this host is taken away: its jobs have %.0f s to save and leave", within_s - reserve_s)
    host.reporter.say(NodeLeaving(node=host.node, within_s=within_s, why=why), f"{host.session}.leaving")
    if await _empty(host, begun + within_s - reserve_s):
        return
    log.warning("%d workers are still here: they are ended now", len(host.running()))
    _signal(host.running(), signal.SIGTERM)
    if not await _empty(host, begun + within_s - reserve_s / 2):
        _signal(host.running(), signal.SIGKILL)
        await _empty(host, begun + within_s - reserve_s / 4)


async def _empty(host: Host, until_s: float) -> bool:
    while host.workers or host.starting:
        left = until_s - time.monotonic()
        if left <= 0:
            return False
        await asyncio.sleep(min(left, LOOK_EVERY_S))
    return True


def _signal(workers: list[LocalWorker], number: signal.Signals) -> None:
    for worker in workers:
        if worker.process is not None:
            worker.signal_group(number)
