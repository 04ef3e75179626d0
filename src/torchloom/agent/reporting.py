"""Publishes events to the stream: in order, each with its own id, retried until acknowledged.

No event is lost while the agent lives, however long the bus is unreachable. Callers own the content.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from dataclasses import dataclass

from msgspec.structs import replace

from torchloom.bus.protocol import Bus
from torchloom.errors import LoomError, UsageError
from torchloom.model.events import Envelope, Event
from torchloom.wire import codec, subjects

log = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.02
_LONGEST_RETRY_S = 0.5


@dataclass(frozen=True, eq=False)
class _Waiting:
    envelope: Envelope
    stored: asyncio.Future[bool]


class Reporter:
    """A queue of events. `say` never waits; the future it returns is done when the event is in the stream."""

    def __init__(self, bus: Bus, node: str, session: str = "") -> None:
        self._bus = bus
        self._session = session
        self._node = node
        self._queue: deque[_Waiting] = deque()
        self._more = asyncio.Event()

    def say(self, event: Event, event_id: str) -> asyncio.Future[bool]:
        """Queue an event. The future's value is False if the event was given up as impossible to store."""
        envelope = Envelope(event_id, f"agent/{self._node}", event, session=self._session)
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(envelope, stored))
        self._more.set()
        return stored

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def run(self) -> None:
        """Append queued events, until cancelled."""
        subject = subjects.node_event(self._node)
        while True:
            await self._more.wait()
            self._more.clear()
            retry_s = _FIRST_RETRY_S
            while self._queue:
                first = self._queue[0]
                id = first.envelope.id
                try:
                    # New at every try: it relates the stream's clock to this host's at that moment.
                    data = codec.encode_envelope(replace(first.envelope, sent_ns=time.time_ns()))
                    await self._bus.append(subject, data, id=id)
                except (UsageError, ValueError, OverflowError) as error:
                    # Every retry would be refused, and everything behind it would wait forever.
                    log.error("event %s cannot be stored and is dropped: %s", id, error)
                    self._done(first, False)
                    continue
                except LoomError as error:
                    log.info("event %s waits (%d in all): %s", id, len(self._queue), error)
                    await asyncio.sleep(retry_s)
                    retry_s = min(_LONGEST_RETRY_S, retry_s * 2)
                    continue
                retry_s = _FIRST_RETRY_S
                self._done(first, True)

    def _done(self, item: _Waiting, stored: bool) -> None:
        self._queue.popleft()
        if not item.stored.done():
            item.stored.set_result(stored)

    async def drain(self, timeout_s: float) -> bool:
        """Wait until all events so far are stored; False if that took too long."""
        waiting = [item.stored for item in self._queue]
        if not waiting:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*map(asyncio.shield, waiting))
        return all(stored.done() for stored in waiting)
