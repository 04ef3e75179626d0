"""Closes the stream's door on an agent that floods it, and opens it later (core/nodes/event_shares.py).

The door is the list of subjects that the stream takes: the server refuses what is not on it before anything
is stored or queued, on every NATS server and with the weaver's rights alone. Nothing that was acknowledged is
lost, and an honest agent appends again until its door is open. While a door is closed only nodes that are
known by their telemetry, their questions or their events can append; otherwise anybody can.

Also notes whether the stream has reached its limit of bytes. Acts only for the weaver that leads, or while
nobody does: a weaver that starts under a flood could not read far enough to lead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable

from torchloom.bus.protocol import EVENT_SUBJECTS, LEADER, MAX_MESSAGE_BYTES, Bus, StreamState
from torchloom.core.nodes.event_shares import EventShares
from torchloom.errors import LoomError
from torchloom.model.events import AgentFlooded
from torchloom.weaver.publisher import Publisher
from torchloom.weaver.trouble import Troubles
from torchloom.wire import subjects

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
IN_TIME_S = 1.0
_UNSAID = 64


class Doors:
    def __init__(
        self,
        bus: Bus,
        stream: Publisher,
        troubles: Troubles,
        slots: Callable[[str], int],
        seen: Callable[[], Iterable[str]],
    ) -> None:
        self._bus, self._stream, self._troubles, self._seen = bus, stream, troubles, seen
        self._shares = EventShares(slots)
        self._taken: list[str] | None = None
        """The subjects that the stream takes, as far as this weaver knows."""
        self._unsaid: deque[AgentFlooded] = deque(maxlen=_UNSAID)
        self._more = asyncio.Event()

    def read(self, subject: str, size: int) -> None:
        """An event was read from the stream."""
        node = subjects.node_of(subject)
        if node is not None:
            self._shares.note(node, size)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(), name="doors")
            group.create_task(self._report(), name="floods")

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                if self._stream.leads or await self._bus.held_epoch(LEADER) == 0:
                    await self.look(time.monotonic())
                else:
                    self._taken = None
            except LoomError as error:
                log.info("the doors of the stream are not looked at now: %s", error)

    async def look(self, now_s: float) -> None:
        takes, stored = await asyncio.gather(
            self._bus.takes_events(IN_TIME_S), self._bus.stored(subjects.NODE_EVENTS)
        )
        self._note_room(stored, now_s)
        counts = {node: n for subject, n in stored.by_subject.items() if (node := subjects.node_of(subject))}
        for closing in self._shares.look(now_s, counts, takes):
            words = f"the events of {closing.node} are refused for {closing.for_s:.0f} s: {closing.reason}"
            log.warning("%s", words)
            self._say(AgentFlooded(node=closing.node, why=closing.reason, closed_s=closing.for_s))
        await self._set(self._shares.closed(now_s), counts)
        for node, lasted_s in self._shares.over(now_s):
            self._say(AgentFlooded(node=node, over=True, lasted_s=lasted_s))

    async def _set(self, closed: list[str], counts: Iterable[str]) -> None:
        wanted = [EVENT_SUBJECTS]
        if closed:
            known = {*self._stream.fleet.nodes, *counts, *self._seen()} - set(closed)
            wanted = [subjects.weaver_event(">"), *(subjects.node_event(node) for node in sorted(known))]
        if wanted != self._taken:
            await self._bus.take_events(wanted)
            self._taken = wanted

    def _note_room(self, stored: StreamState, now_s: float) -> None:
        if stored.most_bytes and stored.bytes + 2 * MAX_MESSAGE_BYTES > stored.most_bytes:
            held, most = stored.bytes >> 20, stored.most_bytes >> 20
            self._troubles.begin("stream", f"The event stream is full: {held} of {most} MiB", now_s)
        else:
            self._troubles.end("stream", now_s)

    def _say(self, event: AgentFlooded) -> None:
        self._unsaid.append(event)
        self._more.set()

    async def _report(self) -> None:
        """Record floods in the stream, which may take a while under a flood."""
        while True:
            await self._more.wait()
            if not self._unsaid:
                self._more.clear()
                continue
            try:
                if self._stream.leads:
                    first = self._unsaid[0]
                    await self._stream.say("flood", first)
                    if self._unsaid and self._unsaid[0] is first:
                        self._unsaid.popleft()
                    continue
            except LoomError as error:
                log.info("a flood is not recorded now: %s", error)
            await asyncio.sleep(LOOK_EVERY_S)
