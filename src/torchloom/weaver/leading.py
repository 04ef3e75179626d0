"""Holding the lease: the weaver that has it leads, and its epoch goes into every command.

Renews it several times a second and steps down when that fails. A weaver that no longer reads the stream must
not lead, however regularly it renews: then the service ends, and another one takes over. Owns what keeps the
service from acting (trouble.py), because the lease is the first thing that a bus without room cannot store.
"""

from __future__ import annotations

import asyncio
import logging
import time

from torchloom import __version__
from torchloom.bus.protocol import Bus, Lease
from torchloom.core.disturbance import open_now
from torchloom.errors import BusUnavailable, TimedOut
from torchloom.model.events import ControlDisturbed, LeaseTaken
from torchloom.model.incidents import Incident
from torchloom.weaver.live_view import LiveView
from torchloom.weaver.own_copy import OwnCopy
from torchloom.weaver.publisher import Publisher
from torchloom.weaver.trouble import Troubles

log = logging.getLogger(__name__)

PROVISION_AGAIN_S = 0.5
LEASE_TTL_S = 2.0
LOOK_EVERY_S = 2.0
STALLED_AFTER_S = 15.0
"""Without one event read for so long, although the stream has newer ones."""
LOOKS = 5
"""And at least so many looks: a host that stood still looks once, and its reader had no turn."""


async def provision(bus: Bus, patient: bool) -> None:
    """Make the streams. In a cluster that is possible once most of its servers are up, and whoever starts the
    first of them should not have to start it again: it is `patient`."""
    while True:
        try:
            await bus.provision()
            return
        except (BusUnavailable, TimedOut) as error:
            if not patient:
                raise
            log.warning("the bus cannot be used yet (%s); trying again", error)
            await asyncio.sleep(PROVISION_AGAIN_S)


class Leading:
    def __init__(
        self,
        bus: Bus,
        stream: Publisher,
        live: LiveView,
        lease: Lease,
        wake: asyncio.Event,
        troubles: Troubles,
        server: str = "",
    ) -> None:
        self._bus, self._stream, self._live, self._lease, self._wake = bus, stream, live, lease, wake
        self._troubles = troubles
        self._server, self._own_copy = server, OwnCopy()
        """The nats-server of this host, if it is one of a cluster."""
        self._looked_s = 0.0
        self._read: tuple[int, float, int] = (-1, 0.0, 0)
        """The last event read, since when it has been the last although there are newer ones, and how often
        that was seen."""

    def troubles(self) -> list[str]:
        return self._troubles.look(self._bus.connected, time.monotonic())

    def stuck_s(self) -> float:
        """For how long the bus, or this host's server of it, stored nothing: what only its restart ends."""
        now_s = time.monotonic()
        return max(self._troubles.stuck_s(self._bus.connected, now_s), self._own_copy.stuck_s(now_s))

    def disturbances(self) -> list[Incident]:
        """The incident of the control plane that is open now, if there is one."""
        self.troubles()  # notes whether the bus is reachable
        found = self._troubles.open_episode(time.monotonic())
        return [] if found is None else [open_now(self._stream.fleet, *found, now_ns=time.time_ns())]

    async def run(self) -> None:
        while True:
            try:
                await self._hold()
                await self._look(time.monotonic())
                self._troubles.end("lease", time.monotonic())
                await self._record_troubles()
            except (BusUnavailable, TimedOut) as error:
                now_s = time.monotonic()
                self._troubles.begin("lease", f"The lease cannot be written: {error.message}", now_s)
                if self._stream.epoch and self._lease.expired:
                    self._step_down(f"the bus is unreachable: {error}")
            self._check_progress(time.monotonic())
            await self._rest()

    async def _rest(self) -> None:
        """Until the next look; a weaver that was not caught up looks as soon as it is, not half a second
        later: a job may wait for it."""
        behind = self._stream.fleet.seq < self._stream.caught_up_to and not self._stream.blocked
        if behind:
            await self._stream.changed(self._stream.caught_up_to - 1, timeout_s=LEASE_TTL_S / 4)
        else:
            await asyncio.sleep(LEASE_TTL_S / 4)

    async def _record_troubles(self) -> None:
        """Record in the stream what is over: while it lasted, nothing could be stored."""
        self.troubles()
        episode = self._troubles.unrecorded()
        if episode is not None and self._stream.active:
            await self._stream.say("control", ControlDisturbed(why=episode.why, lasted_s=episode.lasted_s))
            self._troubles.recorded(episode)

    async def _hold(self) -> None:
        """Hold the lease if nobody else does."""
        stream = self._stream
        if stream.blocked:
            return
        if stream.epoch and not await self._lease.renew():
            self._step_down("the lease was lost")
        if not stream.epoch and stream.fleet.seq >= stream.caught_up_to:
            epoch = await self._lease.acquire(above=stream.fleet.epoch)
            if epoch is not None:
                stream.epoch = epoch
                self._live.expect(stream.fleet, asyncio.get_running_loop().time())
        if stream.fleet.epoch < stream.epoch:
            # Also if it could not be stored the first time, on a disk that was full for instance.
            await stream.say("lease", LeaseTaken(weaver=stream.name, epoch=stream.epoch, version=__version__))
            log.info("%s leads with epoch %d", stream.name, stream.epoch)
            self._wake.set()

    async def _look(self, now_s: float) -> None:
        """Compare the last event read with the stream's."""
        if now_s - self._looked_s < LOOK_EVERY_S or not self._stream.started:
            return
        self._looked_s = now_s
        if self._server:
            self._own_copy.look(await self._bus.behind(self._server), now_s)
        read, last = self._stream.fleet.seq, await self._bus.last_seq()
        before, since_s, looks = self._read
        if read >= last:
            self._read = (-1, 0.0, 0)
        else:
            self._read = (read, since_s, looks + 1) if read == before else (read, now_s, 1)

    def _check_progress(self, now_s: float) -> None:
        read, since_s, looks = self._read
        if self._stream.blocked:
            return  # a restart would end at the same event
        if read == self._stream.fleet.seq and looks >= LOOKS and now_s - since_s > STALLED_AFTER_S:
            raise TimedOut(
                f"No event after {read} was read for {now_s - since_s:.0f} s, although there are newer ones",
                hint="the weaver ends, and its supervisor starts another",
            )

    async def stop_for_good(self, seq: int, error: Exception) -> None:
        """The stream has an event that this weaver cannot read: from here on its fleet would be a guess."""
        service = f"The control service {self._stream.name} (torchloom {__version__})"
        why = f"{service} cannot read event {seq}: {error}. It does not lead any more; upgrade it"
        self._stream.blocked = why
        self._troubles.begin("schema", why, time.monotonic())
        log.error("%s", why)
        if self._stream.epoch:
            self._step_down(why)
        try:
            await self._lease.release()
        except (BusUnavailable, TimedOut) as error:
            log.info("the lease was not released, it expires: %s", error)

    def _step_down(self, why: str) -> None:
        log.warning("%s no longer leads: %s", self._stream.name, why)
        self._stream.epoch = 0
