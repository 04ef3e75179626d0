"""The newest notices, for clients that follow the fleet live or reconnect. A cache, never the truth.

Older notices are rebuilt from the stream, once, when a client asks for them, from the oldest snapshot on. If
their events were dropped, the client gets a `reset`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from typing import TypeVar

from torchloom.bus.protocol import Bus, Record
from torchloom.core.changes import apply_and_compare
from torchloom.core.nodes.speaking import is_of_an_agent
from torchloom.core.notices import notice_of
from torchloom.errors import LoomError
from torchloom.model.events import Envelope
from torchloom.model.fleet import Fleet
from torchloom.model.notice import Notice
from torchloom.wire import codec, subjects

log = logging.getLogger(__name__)

T = TypeVar("T")

KEPT = 8192
"""Notices that are kept, of a few hundred bytes each."""
MOST_RETOLD = 200_000
"""A longer history is not replayed for a client: reading the whole fleet again is faster."""
BREATHE_EVERY = 100
_bad = 0
"""Events that this process could not take."""

Oldest = Callable[[int], Awaitable[Fleet | None]]
"""The fleet from which all events that are kept up to a place can be replayed (weaver/snapshot.py)."""


class Feed:
    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._notices: list[Notice] = []
        self._complete_after = 0
        """Everything that came after this place in the stream is here."""
        self._retelling = asyncio.Lock()
        self._retold = False

    def begin(self, seq: int) -> None:
        """The fleet was loaded from a snapshot of this place: notices begin after it."""
        self._notices, self._complete_after = [], seq

    def add(self, notice: Notice) -> None:
        self._notices.append(notice)
        if len(self._notices) > self._kept + self._kept // 4:  # several at once, because it moves them all
            self._trim()

    def after(self, seq: int, most: int) -> list[Notice] | None:
        """The next notices after a place, oldest first; None when some of them are not here."""
        if seq < self._complete_after:
            return None
        at = bisect_right(self._notices, seq, key=lambda notice: notice.seq)
        return self._notices[at : at + most]

    @property
    def complete_after(self) -> int:
        return self._complete_after

    async def reach_back(self, seq: int, bus: Bus, oldest: Oldest) -> bool:
        """Whether all notices after `seq` are available, if need be after reading the stream again."""
        if seq >= self._complete_after:
            return True
        async with self._retelling:
            if not self._retold and seq < self._complete_after:
                with contextlib.suppress(LoomError):
                    await self._retell(bus, oldest)
        return seq >= self._complete_after

    async def _retell(self, bus: Bus, oldest: Oldest) -> None:
        """Replay from the oldest snapshot up to where our own notices begin."""
        self._retold = True
        fleet, told, until = await oldest(self._complete_after), [], self._complete_after
        if fleet is None or until - fleet.seq > MOST_RETOLD:
            return
        began = fleet.seq
        async with contextlib.aclosing(bus.read(began)) as records:
            async for record in records:
                if record.seq > until:
                    break
                notice = apply_record(fleet, record)
                if notice is not None:
                    told.append(notice)
                if record.seq % BREATHE_EVERY == 0:
                    await asyncio.sleep(0)
                if record.seq == until:
                    break
        if self._complete_after == until:
            self._notices, self._complete_after = told + self._notices, began
            self._trim()

    def _trim(self) -> None:
        extra = len(self._notices) - self._kept
        if extra > 0:
            self._complete_after = self._notices[extra - 1].seq
            del self._notices[:extra]


def apply_record(fleet: Fleet, record: Record) -> Notice | None:
    """Like `tell`, for the service's top level."""
    return guarded(record, lambda: tell(fleet, record))


def guarded(record: Record, apply: Callable[[], T]) -> T | None:
    """One bad event must not stop all jobs, nor a replay."""
    try:
        return apply()
    except (codec.NewerSchema, codec.UnknownContent):
        raise  # not the event is bad, but this version too old for it
    except Exception:  # the service's top level
        log.exception("event %d on %s broke the core", record.seq, record.subject)
        return None


def tell(fleet: Fleet, record: Record) -> Notice | None:
    """Apply a record as the service does and return the notice of its changes; None if it has no effect."""
    envelope = believed(record)
    if envelope is None:
        fleet.seq = record.seq
        return None
    change = apply_and_compare(fleet, envelope, record.seq, record.at_ns)
    return notice_of(change) if change is not None else None


def believed(record: Record) -> Envelope | None:
    """The event of a record; None if it cannot be read, or if an agent speaks for somebody else.

    Raises NewerSchema or UnknownContent for an event of another version's weaver. One of an agent is passed
    over: whoever has stolen an agent's key must not be able to stop every weaver with it.
    """
    try:
        envelope = codec.decode_envelope(record.data)
    except (codec.NewerSchema, codec.UnknownContent) as error:
        if (node := subjects.node_of(record.subject)) is None:
            raise
        _say_bad("event %d of node %s is passed over: %s; upgrade this service", record.seq, node, error)
        return None
    except codec.DecodeError as error:
        _say_bad("event %d on %s cannot be read: %s", record.seq, record.subject, error)
        return None
    # The server lets an agent append only under its own node; here that name must match the event's.
    node = subjects.node_of(record.subject)
    if node is not None and not is_of_an_agent(envelope.body, node):
        _say_bad("event %d on %s speaks for somebody else; ignored", record.seq, record.subject)
        return None
    return envelope


def _say_bad(words: str, *facts: object) -> None:
    """The first of them, then the 2nd, 4th, 8th …: whoever appends thousands must not fill the log."""
    global _bad
    _bad += 1
    if _bad & (_bad - 1) == 0:
        log.error(words + " (%d such events so far)", *facts, _bad)
