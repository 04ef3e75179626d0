"""Bounds what connections cost before a request is read: time for its headers, and how many there may be.

uvicorn waits forever for the first request of a connection, and asyncio logs each connection that it cannot
accept for want of a file descriptor. A client that opens connections and sends nothing could so stop the API
and fill its log. At the limit, the oldest connection without a request in progress is closed for the new one.
"""

from __future__ import annotations

import asyncio
import resource
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_WITHIN_S = 10.0
"""How long a new connection may take for the headers of its first request."""
MOST = 1024
FILES_KEPT = 96
"""File descriptors that the service needs besides connections: bus, logs, checkpoint catalogues."""
LEAST = 32


def most_connections() -> int:
    """The most connections with which the service never runs out of file descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(LEAST, min(MOST, soft - FILES_KEPT)) if soft > 0 else MOST


class BoundedProtocol(H11Protocol):
    """One connection of uvicorn's, with a deadline until its first request is whole."""

    headers_within_s = HEADERS_WITHIN_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._since_s = 0.0
        self._asked = False

    @property
    def _cycle(self) -> Any:
        """The request in progress; None before the first, which uvicorn's types omit."""
        return self.cycle

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._since_s = time.monotonic()
        self._deadline = self.loop.call_later(self.headers_within_s, self._too_slow)
        if len(self.connections) > most_connections():
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        self._asked = self._asked or self._cycle is not None
        if self._asked:
            self._stop_deadline()

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self._cycle is None or bool(self._cycle.response_complete)

    def _too_slow(self) -> None:
        if not self._asked and not self.transport.is_closing():
            self.transport.abort()

    def _make_room(self) -> None:
        ours = [one for one in self.connections if isinstance(one, BoundedProtocol)]
        others = [one for one in ours if one is not self and one.is_idle]
        oldest = min(others, key=lambda c: c._since_s, default=self)
        oldest.transport.abort()
