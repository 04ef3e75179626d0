"""Which weavers there are, and of which version: each one announces itself over the bus every few seconds.

Lossy, never in the stream, and nothing is decided by it: `loom upgrade --check` shows it. Only weavers may
publish on these subjects.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from torchloom import __version__
from torchloom.bus.protocol import Bus, Message
from torchloom.errors import LoomError
from torchloom.model.messages import WeaverPresence
from torchloom.weaver.publisher import Publisher
from torchloom.wire import codec, subjects

log = logging.getLogger(__name__)

EVERY_S = 2.0
GONE_AFTER_S = 15.0
MOST = 64
"""Weavers that are remembered."""


class Presences:
    def __init__(self, bus: Bus, stream: Publisher, clock: Callable[[], float] = time.monotonic) -> None:
        self._bus, self._stream, self._clock = bus, stream, clock
        self._seen: dict[str, tuple[WeaverPresence, float]] = {}

    def own(self) -> WeaverPresence:
        stream = self._stream
        return WeaverPresence(
            name=stream.name, version=__version__, leads=stream.active, blocked=stream.blocked
        )

    def weavers(self) -> list[WeaverPresence]:
        """This weaver, and those that announced themselves lately."""
        others = [
            one for one, at_s in self._seen.values() if self._clock() - at_s < GONE_AFTER_S
        ]  # fmt: skip
        own = self.own()
        return [own, *(one for one in others if one.name != own.name)]

    async def hear(self, message: Message) -> None:
        try:
            found = codec.decode_presence(message.data)
        except codec.DecodeError as error:
            log.info("%s cannot be read: %s", message.subject, error)
            return
        self._seen.pop(found.name, None)
        self._seen[found.name] = (found, self._clock())
        while len(self._seen) > MOST:
            del self._seen[next(iter(self._seen))]

    async def run(self) -> None:
        await self._bus.subscribe(subjects.PRESENCES, self.hear)
        while True:
            try:
                await self._bus.publish(subjects.presence(self._stream.name), codec.encode(self.own()))
            except LoomError as error:
                log.info("this weaver cannot announce itself now: %s", error)
            await asyncio.sleep(EVERY_S)
