"""Whether this weaver hears everything in time: an echo of its own, on the connection and behind all that
agents send.

An overloaded weaver reads heartbeats late or drops them, and one whose second connection is lost reads none.
Then silence says nothing about nodes: thousands of them would be reported as unreachable at once, and each
report makes the overload worse.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from torchloom.bus.protocol import Bus, Message, Subscription
from torchloom.errors import LoomError
from torchloom.wire import subjects

log = logging.getLogger(__name__)

EVERY_S = 0.5
FEW = 256
"""So many waiting heartbeats, or two of every node, are not late."""
IN_TIME_S = 1.5
"""An echo that takes longer than this, sending it included, is late."""


class Hearing:
    def __init__(
        self,
        bus: Bus,
        name: str,
        nodes: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus, self._name, self._nodes, self._clock = bus, name, nodes, clock
        self._heartbeats: Subscription | None = None
        self._newest_s = self._late_s = clock()
        """When the newest echo that came back was sent, and when one was late for the last time."""

    def follow(self, heartbeats: Subscription) -> None:
        """What waits there has not been heard either."""
        self._heartbeats = heartbeats

    def well_for_s(self) -> float:
        """For how long everything has been heard in time; 0 if it is not now."""
        now_s = self._clock()
        waiting = self._heartbeats.waiting if self._heartbeats is not None else 0
        if now_s - self._newest_s > IN_TIME_S or waiting > max(FEW, 2 * self._nodes()):
            self._late_s = now_s
        return now_s - self._late_s

    async def echo(self, message: Message) -> None:
        """Handler of our own echo."""
        try:
            sent_s = float(message.data)
        except ValueError:
            return
        now_s = self._clock()
        if not self._newest_s <= sent_s <= now_s:
            return
        if now_s - sent_s > IN_TIME_S or now_s - self._newest_s > IN_TIME_S + EVERY_S:
            self._late_s = now_s
        self._newest_s = sent_s

    async def run(self) -> None:
        await self._bus.subscribe(subjects.echo(self._name), self.echo, apart=True)
        while True:
            try:
                await self._bus.publish(subjects.echo(self._name), repr(self._clock()).encode())
            except LoomError as error:
                log.info("no echo is sent now: %s", error)
            self.well_for_s()
            await asyncio.sleep(EVERY_S)
