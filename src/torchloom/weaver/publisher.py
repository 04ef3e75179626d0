"""The weaver's place in the stream: the fleet as applied so far, and how its parts publish events.

Every part of the weaver is given this and nothing else of the weaver. Applies nothing itself: the service
puts the fleet here and signals every change.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid

from torchloom.bus.protocol import Bus
from torchloom.errors import BusUnavailable, NotFound, TimedOut, UsageError
from torchloom.model.events import Envelope, Event
from torchloom.model.fleet import Fleet, Job
from torchloom.wire import codec, subjects

APPLIED_WITHIN_S = 5.0


class Publisher:
    def __init__(self, bus: Bus, name: str) -> None:
        self._bus = bus
        self.name = name
        self.fleet = Fleet()
        self.epoch = 0
        """Of the lease that this weaver holds; 0: none."""
        self.caught_up_to = 0
        self.blocked = ""
        """Why this weaver reads no further and never leads again; empty: it does."""
        self.started = False
        self._moved = asyncio.Condition()

    @property
    def active(self) -> bool:
        """Whether this weaver leads, and the stream says so too."""
        return self.epoch > 0 and self.fleet.epoch == self.epoch

    @property
    def ready(self) -> bool:
        caught_up = self.started and self.fleet.seq >= self.caught_up_to
        return caught_up and not self.blocked and self._bus.connected

    @property
    def leads(self) -> bool:
        return self.active and self.ready

    def check_ready(self) -> None:
        if self.blocked:
            raise BusUnavailable(self.blocked, hint="upgrade it, or ask another control service")
        if not self.ready:
            raise BusUnavailable(
                "The weaver is not connected to NATS at the moment; try again in a few seconds."
            )

    def job(self, job: str) -> Job:
        found = self.fleet.jobs.get(job)
        if found is None:
            raise NotFound(f"There is no job {job!r}; `loom ps` lists them.")
        return found

    async def say(self, kind: str, body: Event) -> None:
        """Append an event and wait until it has been applied here."""
        if self.blocked:
            self.check_ready()
        envelope = Envelope(uuid.uuid4().hex, self.name, body)
        try:
            data = codec.encode_readable(envelope)
        except codec.DecodeError as error:
            raise UsageError(f"This is not recorded: it could not be read again ({error}).") from None
        seq = await self._bus.append(subjects.weaver_event(kind), data, id=envelope.id)
        if await self.changed(seq - 1, timeout_s=APPLIED_WITHIN_S) < seq:
            raise TimedOut("The event was stored but not applied within 5 s; look at `loom status` again.")

    async def changed(self, after_seq: int, timeout_s: float) -> int:
        """Wait until an event after `after_seq` has been applied; the sequence reached."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._moved:
                await self._moved.wait_for(lambda: self.fleet.seq > after_seq)
        return self.fleet.seq

    async def moved(self) -> None:
        """An event was applied: wake every waiter in `changed`."""
        async with self._moved:
            self._moved.notify_all()
