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

MAX_BACKLOG = 65_536
"""Messages waiting for a slow handler; beyond it the newest are dropped (messages are lossy by contract)."""


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
            return
        self._backlog.append(message)
        self._wake.set()

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
            # A separate task, so that a handler's failure can be examined without catching everything.
            call = asyncio.ensure_future(self._handler(self._backlog.popleft()))
            try:
                await asyncio.wait([call])
            finally:
                call.cancel()
            if not call.cancelled() and (error := call.exception()) is not None:
                log.error("the handler of %s failed", self._name, exc_info=error)
