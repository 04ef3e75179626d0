"""Self-fencing: ends the workers of jobs that allow it when this host has lost the control plane too long.

A job's owner may want its workers replaced although nobody can see whether they live (`self_fence_s` of its
policy). Then somebody must be sure that they do not: this host ends them itself. While there are such workers
the agent asks the weaver that leads for a lease; a lease lasts from when the question was *sent*, so the
weaver, which waits from when it was *heard* (and a little longer), never replaces one that lives. None is
started without a lease: the command may have been under way for as long as this host was cut off. The
deadline stands in the black box before the worker is forked, and the spawner keeps it too, and the worker at
its step boundaries: the agent's own death changes nothing. For all other jobs nothing here happens.
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
    """Since when the host has a lease, asked for now. Raises LoomError if there is none."""
    sent_ns = now_ns()
    ask = AskLease(session=host.session, what_for=what_for)
    await bus.request(subjects.lease(host.node), codec.encode(ask), timeout_s=ANSWER_WITHIN_S)
    return sent_ns


async def wait_for_lease(host: Host, bus: Bus, needed: Callable[[], bool]) -> int:
    """The same for a start, as soon as there is one; 0 when it is not needed any more."""
    while needed():
        try:
            return await lease(host, bus, "start")
        except LoomError as error:
            log.info("a start waits for a lease: %s", error)
        await asyncio.sleep(ASK_EVERY_S)
    return 0


async def keep_lease(host: Host, bus: Bus) -> None:
    """Ask for the lease while somebody needs it, for ever."""
    while True:
        if _fenced(host):
            try:
                _renew(host, await lease(host, bus))
            except LoomError as error:
                log.debug("no lease: %s", error)
        await asyncio.sleep(ASK_EVERY_S)


async def enforce(host: Host) -> None:
    """End whoever is past its deadline, for ever."""
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
                worker.process.signal_group(signal.SIGKILL)
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
    """Never back to life: a deadline that has passed stays passed."""
    for worker, fence_ns, until_ns in _fenced(host):
        if until_ns > now_ns() and worker.box is not None:
            worker.box.view.set_fence(fence_ns, max(until_ns, sent_ns + fence_ns))
