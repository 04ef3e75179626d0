"""Server-sent events: their format, and a response that gives up on a client that stopped reading.

Nothing is queued for a client: the source is asked for more only when the socket has taken what came before,
so a slow client costs one socket buffer, and one that takes nothing at all is cut off. It reconnects with
Last-Event-ID and resumes where it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

KEEP_ALIVE_S = 10.0
"""Interval of comments in an idle stream, so that a client can see that the connection is alive."""
TAKEN_WITHIN_S = 30.0
"""A client that reads nothing for this long is gone or suspended."""

COMMENT = b": still here\n\n"
encode = msgspec.json.Encoder().encode


def event(kind: str, body: object, id: str = "") -> bytes:
    """One event. The body is one line, because JSON escapes line ends; kind and id are never a user's."""
    place = f"id: {id}\n" if id else ""
    return f"event: {kind}\n{place}data: ".encode() + encode(body) + b"\n\n"


class EventStream(StreamingResponse):
    """Sends what a generator yields, and closes it whatever happens."""

    media_type = "text/event-stream"

    def __init__(self, source: AsyncGenerator[bytes, None], taken_within_s: float = TAKEN_WITHIN_S) -> None:
        super().__init__(source, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._source = source
        self._taken_within_s = taken_within_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._source):
            await super().__call__(scope, receive, self._impatient(send))

    def _impatient(self, send: Send) -> Send:
        async def within(message: Message) -> None:
            try:
                async with asyncio.timeout(self._taken_within_s):
                    await send(message)
            except TimeoutError:
                raise OSError("the client does not read") from None  # starlette takes it for a disconnect

        return within
