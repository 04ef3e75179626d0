"""Reads reports of health from the bus, and stops reading for a while when monitors send too many.

Every message costs the connection that also carries the lease and the events, even one that is thrown away.
So a monitor beyond its share is cut off by counting, and if that is not enough nothing is read from the
subject: the server then sends nothing. HTTP and files are other ways in, and stay open. Judges no report.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from torchloom.bus.protocol import Bus, Handler
from torchloom.errors import LoomError
from torchloom.weaver.requests.devices import Rate
from torchloom.wire import subjects

log = logging.getLogger(__name__)

MESSAGES, MESSAGES_A_SECOND = 5_000.0, 500.0
"""Messages that one monitor may publish: at once, and per second."""
MESSAGES_OF_ALL, MESSAGES_A_SECOND_OF_ALL = 10_000.0, 1_000.0
MOST_BYTES = 64 << 10
"""Of one message."""
FLOOD = 2_000
"""Messages beyond the share after which nothing is read for a while."""
CLOSED_S, LONGEST_CLOSED_S = 10.0, 300.0
_AGAIN_S = 1.0


class Monitors:
    def __init__(self, bus: Bus, hear: Handler, clock: Callable[[], float] = time.monotonic) -> None:
        self._bus, self._hear, self._clock = bus, hear, clock
        self._each = Rate(MESSAGES, MESSAGES_A_SECOND, clock)
        self._all = Rate(MESSAGES_OF_ALL, MESSAGES_A_SECOND_OF_ALL, clock)
        self._beyond = 0
        """Messages beyond the share since the subject was opened."""
        self._flooded = asyncio.Event()
        self.dropped = 0
        """Messages that were not taken."""
        self.closed = 0
        """How often nothing was read for a while."""

    def admits(self, subject: str, size: int) -> bool:
        """Whether a message is taken. Called for each one before anything else is done with it."""
        source = subject.rpartition(".")[2]
        if size <= MOST_BYTES and self._each.admits(source) and self._all.admits(""):
            return True
        self.dropped += 1
        self._beyond += 1
        if self._beyond >= FLOOD:
            self._flooded.set()
        return False

    async def run(self) -> None:
        closed_s = CLOSED_S
        while True:
            self._beyond, opened_s = 0, self._clock()
            self._flooded.clear()
            try:
                subscription = await self._bus.subscribe(subjects.HEALTH, self._hear, admit=self.admits)
                await self._flooded.wait()
                await subscription.unsubscribe()
            except LoomError as error:
                log.info("reports of monitors cannot be read from the bus now: %s", error)
                await asyncio.sleep(_AGAIN_S)
                continue
            self.closed += 1
            calm = self._clock() - opened_s > LONGEST_CLOSED_S
            closed_s = CLOSED_S if calm else min(LONGEST_CLOSED_S, 2 * closed_s)
            log.warning("monitors flood %s: nothing is read from it for %d s", subjects.HEALTH, closed_s)
            await asyncio.sleep(closed_s)
