"""Background tasks of the agent. A task that fails is logged and ends nothing else.

This is the wide `except` at the agent's top level: every task of the agent runs through here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

_PAUSE_AFTER_FAILURE_S = 0.5


class Tasks:
    """The tasks of one agent; cancelled together at its end."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(self._guard(work, name), name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # A task cancelled before its first turn has not started its work, and nobody else would.
        task.add_done_callback(lambda _: work.close())
        return task

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Like `start`, for work without an end: restarted a moment after a failure."""
        self.start(self._again_and_again(work, name), name)

    async def _again_and_again(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        while True:
            await self._guard(work(), name)
            await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)

    async def _guard(self, work: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await work
        except Exception:  # one worker, box or command must never end the agent
            log.exception("%s failed", name)

    async def cancel(self) -> None:
        """Cancel all and wait for their end; repeatedly, as in Python 3.11 nats-py may swallow a cancel."""
        while running := set(self._running):
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=0.05)
