"""Hands a subscription's messages to its handler, one at a time and in order.

Shared by both buses, so that handlers meet the same rules on each: bounded backlog, failures logged and
survived, a running call is not interrupted by `stop`. Knows nothing of where messages come from.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from torchloom.bus.protocol import Handler, Message

log = logging.getLogger(__name__)

MAX_BACKLOG = 16_384
"""Messages waiting for a slow handler; beyond it the oldest are dropped (messages are lossy by contract):
what is newer says more about now, and a handler that is behind must not fall further back."""
BREATHE_EVERY = 16


class HandlerPump:
    def __init__(self, name: str, handler: Handler) -> None:
        self._name = name
        self._handler = handler
        self._backlog: deque[Message] = deque()
        self._wake = asyncio.Event()
        self._stopped = False
        self.dropped = 0
        """How many messages a full backlog has cost so far."""
        self._task = asyncio.create_task(self._run(), name=f"handler of {name}")

    def deliver(self, message: Message) -> None:
        if len(self._backlog) >= MAX_BACKLOG:
            if self.dropped == 0:
                log.warning("the handler of %s is too slow: messages are being dropped", self._name)
            self.dropped += 1
            self._backlog.popleft()
        self._backlog.append(message)
        self._wake.set()

    @property
    def waiting(self) -> int:
        return len(self._backlog)

    def stop(self) -> None:
        """No call begins after this; one that runs may end."""
        self._stopped = True
        self._backlog.clear()
        self._wake.set()

    def cancel(self) -> None:
        """Like `stop`, and a running call is cancelled too."""
        self.stop()
        self._task.cancel()

    async def _run(self) -> None:
        while not self._stopped:
            if not self._backlog:
                self._wake.clear()
                await self._wake.wait()
                continue
            # A separate task, so that a handler's failure can be examined without catching everything. One
            # for all that waits: a task for each message would cost more than most handlers do.
            calls = asyncio.ensure_future(self._hand_over())
            try:
                await asyncio.wait([calls])
            finally:
                calls.cancel()
            if not calls.cancelled() and (error := calls.exception()) is not None:
                log.error("the handler of %s failed", self._name, exc_info=error)

    async def _hand_over(self) -> None:
        """Call the handler until nothing waits. Others get their turn after every few messages, because most
        handlers never wait for anything."""
        taken = 0
        while self._backlog and not self._stopped:
            await self._handler(self._backlog.popleft())
            taken += 1
            if taken % BREATHE_EVERY == 0:
                await asyncio.sleep(0)
