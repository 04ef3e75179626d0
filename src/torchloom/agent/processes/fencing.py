"""Self-fencing: ends the workers of jobs that allow it when this host has lost the control plane too long.

A job's owner may want workers replaced although nobody can see whether they are alive (`self_fence_s` of the
policy). That is safe only if they are dead, so this host ends them itself. While it has such workers, the
agent requests a lease from the leading weaver. The lease counts from when the request was *sent*; the weaver
waits from when it *received* the request (and a little longer), so it never replaces a living worker. No
worker starts without a lease: the command may have been in transit for as long as this host was cut off. The
deadline is in the black box before the worker is forked; the spawner enforces it too, and the worker at its
step boundaries, so the agent's death changes nothing. Nothing here applies to other jobs.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Literal

from torchloom.agent.host import Host, LocalWorker
from torchloom.agent.observe.guarded import guarded
from torchloom.boottime import now_ns
from torchloom.bus.protocol import Bus
from torchloom.errors import LoomError
from torchloom.model.messages import AskLease
from torchloom.wire import codec, subjects

log = logging.getLogger(__name__)

ASK_EVERY_S = 0.5
ANSWER_WITHIN_S = 2.0
LOOK_EVERY_S = 0.1


async def lease(host: Host, bus: Bus, what_for: Literal["keep", "start"] = "keep") -> int:
    """Request a lease and return when it began. Raises LoomError if there is none."""
    sent_ns = now_ns()
    ask = AskLease(session=host.session, what_for=what_for)
    await bus.request(subjects.lease(host.node), codec.encode(ask), timeout_s=ANSWER_WITHIN_S)
    return sent_ns


async def wait_for_lease(host: Host, bus: Bus, needed: Callable[[], bool]) -> int:
    """The same for a start: wait until there is a lease; 0 if it is no longer needed."""
    while needed():
        try:
            return await lease(host, bus, "start")
        except LoomError as error:
            log.info("a start waits for a lease: %s", error)
        await asyncio.sleep(ASK_EVERY_S)
    return 0


async def keep_lease(host: Host, bus: Bus) -> None:
    """Renew the lease while a worker needs it, until cancelled."""
    while True:
        if _fenced(host):
            try:
                _renew(host, await lease(host, bus))
            except LoomError as error:
                log.debug("no lease: %s", error)
        await asyncio.sleep(ASK_EVERY_S)


async def enforce(host: Host) -> None:
    """End workers past their deadline, until cancelled."""
    while True:
        for worker, fence_ns, until_ns in _fenced(host):
            if now_ns() > until_ns and worker.process is not None and not worker.ending:
                log.warning(
                    "%s rank %d is ended: the control plane has been out of reach for %.1f s, and its job "
                    "wants that (self_fence_s)",
                    worker.ref.job,
                    worker.ref.rank,
                    fence_ns / 1e9,
                )
                worker.signal_group(signal.SIGKILL)
        await asyncio.sleep(LOOK_EVERY_S)


def _fenced(host: Host) -> list[tuple[LocalWorker, int, int]]:
    found = []
    for worker in host.running():
        if worker.box is not None and not worker.box.closed:
            fence_ns, until_ns = guarded(worker, worker.box.fence, (0, 0))
            if fence_ns:
                found.append((worker, fence_ns, until_ns))
    return found


def _renew(host: Host, sent_ns: int) -> None:
    """A deadline that has passed stays passed."""
    for worker, fence_ns, until_ns in _fenced(host):
        if until_ns > now_ns() and worker.box is not None:
            worker.box.view.set_fence(fence_ns, max(until_ns, sent_ns + fence_ns))
