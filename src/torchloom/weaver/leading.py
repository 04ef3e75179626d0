"""Holding the lease: the weaver that has it leads, and its epoch goes into every command.

Renews it several times a second and steps down when that fails. Owns what keeps the service from acting
(trouble.py), because the lease is the first thing that a bus without room cannot store.
"""

from __future__ import annotations

import asyncio
import logging
import time

from torchloom.bus.protocol import Bus, Lease
from torchloom.errors import BusUnavailable, TimedOut
from torchloom.model.events import LeaseTaken
from torchloom.weaver.live_view import LiveView
from torchloom.weaver.publisher import Publisher
from torchloom.weaver.trouble import Troubles

log = logging.getLogger(__name__)

LEASE_TTL_S = 2.0


class Leading:
    def __init__(
        self, bus: Bus, stream: Publisher, live: LiveView, lease: Lease, wake: asyncio.Event
    ) -> None:
        self._bus, self._stream, self._live, self._lease, self._wake = bus, stream, live, lease, wake
        self._troubles = Troubles()

    def troubles(self) -> list[str]:
        return self._troubles.look(self._bus.connected, time.monotonic())

    def stuck_s(self) -> float:
        return self._troubles.stuck_s(self._bus.connected, time.monotonic())

    async def run(self) -> None:
        while True:
            try:
                await self._hold()
                self._troubles.end("lease")
            except (BusUnavailable, TimedOut) as error:
                now_s = time.monotonic()
                self._troubles.begin("lease", f"The lease cannot be written: {error.message}", now_s)
                if self._stream.epoch and self._lease.expired:
                    self._step_down(f"the bus is unreachable: {error}")
            await asyncio.sleep(LEASE_TTL_S / 4)

    async def _hold(self) -> None:
        """Hold the lease if nobody else does."""
        stream = self._stream
        if stream.epoch and not await self._lease.renew():
            self._step_down("the lease was lost")
        if not stream.epoch and stream.fleet.seq >= stream.caught_up_to:
            epoch = await self._lease.acquire(above=stream.fleet.epoch)
            if epoch is not None:
                stream.epoch = epoch
                self._live.expect(stream.fleet, asyncio.get_running_loop().time())
        if stream.fleet.epoch < stream.epoch:
            # Also if it could not be stored the first time, on a disk that was full for instance.
            await stream.say("lease", LeaseTaken(weaver=stream.name, epoch=stream.epoch))
            log.info("%s leads with epoch %d", stream.name, stream.epoch)
            self._wake.set()

    def _step_down(self, why: str) -> None:
        log.warning("%s no longer leads: %s", self._stream.name, why)
        self._stream.epoch = 0
