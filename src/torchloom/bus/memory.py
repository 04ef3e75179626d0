"""A bus inside one process: the first-class fake behind every test that needs no server.

Owns `MemoryHub` (what a NATS server would hold) and `MemoryBus` (one client of it). It keeps the promises of
`protocol.Bus` and passes the same contract tests as the real one. Tests may cut a client off (`partition`),
lose an acknowledgement (`lose_next_ack`) and cut history (`forget_before`). Nothing here is durable, and no
permissions are checked.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchloom.bus.protocol import (
    EVENT_SUBJECTS,
    REQUEST_TIMEOUT_S,
    Admit,
    Bus,
    Handler,
    Message,
    Record,
    StreamState,
    check_event,
    check_size,
)
from torchloom.bus.pump import HandlerPump
from torchloom.errors import BusUnavailable, Conflict, NoResponder, StreamRewound, TimedOut


def matches(pattern: str, subject: str) -> bool:
    """NATS wildcards: `*` is one token, a final `>` is one or more."""
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        return len(given) >= len(wanted) and matches_tokens(wanted[:-1], given)
    return len(given) == len(wanted) and matches_tokens(wanted, given)


def matches_tokens(wanted: list[str], given: list[str]) -> bool:
    return all(w in ("*", g) for w, g in zip(wanted, given, strict=False))


@dataclass(slots=True)
class LeaseEntry:
    revision: int
    token: str
    """Who wrote it; empty after a release."""
    until_s: float
    epoch: int = 0


@dataclass(slots=True)
class MemoryHub:
    """What all buses of a test share. `now_ns` and `now_s` can be replaced to control time."""

    now_ns: Callable[[], int] = time.time_ns
    now_s: Callable[[], float] = time.monotonic
    records: list[Record] = field(default_factory=list)
    by_id: dict[str, int] = field(default_factory=dict)
    last_of: dict[str, int] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    leases: dict[str, LeaseEntry] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    """Events kept, by subject."""
    size: int = 0
    """Bytes of all events kept."""
    taken: tuple[str, ...] = (EVENT_SUBJECTS,)
    """Patterns of the subjects whose events are taken."""
    last: int = 0
    revision: int = 0
    buses: list[MemoryBus] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def bus(self) -> MemoryBus:
        return MemoryBus(self)

    def forget_before(self, seq: int) -> None:
        """Drop history, as a retention limit would."""
        self.records = [record for record in self.records if record.seq >= seq]
        self.counts = Counter(record.subject for record in self.records)
        self.size = sum(len(record.data) for record in self.records)
        self.last_of = {subject: last for subject, last in self.last_of.items() if last >= seq}

    def store(self, subject: str, data: bytes, id: str, expect_last: int | None) -> int:
        if (known := self.by_id.get(id)) is not None:
            return known
        if not any(matches(pattern, subject) for pattern in self.taken):
            raise BusUnavailable("no stream takes this event")
        last_of_subject = self.last_of.get(subject, 0)
        if expect_last is not None and expect_last != last_of_subject:
            raise Conflict(f"the last event on {subject} is {last_of_subject}, not {expect_last}")
        self.last += 1
        self.records.append(Record(self.last, subject, data, self.now_ns()))
        self.counts[subject] += 1
        self.size += len(data)
        self.by_id[id] = self.last_of[subject] = self.last
        self.wake()
        return self.last

    def wake(self) -> None:
        """Let every waiting reader and append look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self) -> None:
        await self._changed.wait()


class MemorySubscription:
    def __init__(self, bus: MemoryBus, pattern: str, handler: Handler, admit: Admit | None) -> None:
        self.pattern = pattern
        self.admit = admit
        self.pump = HandlerPump(pattern, handler)
        self._bus = bus

    @property
    def waiting(self) -> int:
        return self.pump.waiting

    async def unsubscribe(self) -> None:
        if self in self._bus.subscriptions:
            self._bus.subscriptions.remove(self)
        self.pump.stop()


class MemoryLease:
    _tokens = itertools.count(1)

    def __init__(self, bus: MemoryBus, name: str, holder: str, ttl_s: float) -> None:
        self._bus = bus
        self._name = name
        self._token = f"{holder}#{next(self._tokens)}"
        self._ttl_s = ttl_s
        self._until_s = 0.0
        self._epoch: int | None = None

    @property
    def epoch(self) -> int | None:
        return self._epoch

    @property
    def expired(self) -> bool:
        return self._epoch is None or self._bus.hub.now_s() >= self._until_s

    async def acquire(self, above: int = 0) -> int | None:
        await self._bus.online(REQUEST_TIMEOUT_S)
        hub = self._bus.hub
        entry = hub.leases.get(self._name)
        if self._epoch is not None and entry is not None and entry.token == self._token:
            return self._epoch if await self.renew() else None
        if entry is not None and entry.token and entry.until_s > hub.now_s():
            return None
        hub.revision = max(hub.revision, above)
        self._epoch = None
        self._write(self._token)
        self._epoch = hub.leases[self._name].revision
        return self._epoch

    async def renew(self) -> bool:
        if self._epoch is None:
            return False
        await self._bus.online(REQUEST_TIMEOUT_S)
        if self._bus.hub.leases[self._name].token != self._token:
            self._epoch = None
            return False
        self._write(self._token)
        return True

    async def release(self) -> None:
        if self._epoch is None:
            return
        self._epoch = None
        if self._bus.connected and self._bus.hub.leases[self._name].token == self._token:
            self._write("")

    def _write(self, token: str) -> None:
        hub = self._bus.hub
        self._until_s = hub.now_s() + self._ttl_s
        hub.revision += 1
        hub.leases[self._name] = LeaseEntry(hub.revision, token, self._until_s, self._epoch or hub.revision)


class MemoryBus:
    """One client of a hub."""

    _inboxes = itertools.count(1)

    def __init__(self, hub: MemoryHub) -> None:
        self.hub = hub
        self.subscriptions: list[MemorySubscription] = []
        self.on_reconnect: list[Callable[[], Awaitable[None]]] = []
        self._cut_off = False
        self._closed = False
        self._lose_ack = False
        self._answers: dict[str, asyncio.Future[bytes]] = {}
        self._callbacks: set[asyncio.Task[None]] = set()
        hub.buses.append(self)

    @property
    def connected(self) -> bool:
        return not (self._cut_off or self._closed)

    def partition(self) -> None:
        """Cut this client off until `heal`."""
        self._cut_off = True
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(BusUnavailable("the connection was lost while waiting for an answer"))
        self.hub.wake()

    def heal(self) -> None:
        self._cut_off = False
        self.hub.wake()
        task = asyncio.ensure_future(self._reconnected())
        self._callbacks.add(task)
        task.add_done_callback(self._callbacks.discard)

    def lose_next_ack(self) -> None:
        """The next append is stored, but its caller gets BusUnavailable."""
        self._lose_ack = True

    async def _reconnected(self) -> None:
        for callback in list(self.on_reconnect):
            await callback()

    async def online(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not self.connected and not self._closed:
                    await self.hub.change()
        except TimeoutError:
            raise BusUnavailable("the bus is not reachable") from None
        if self._closed:
            raise BusUnavailable("the bus is closed")

    async def provision(self) -> None:
        await self.online(REQUEST_TIMEOUT_S)

    async def publish(self, subject: str, data: bytes) -> None:
        check_size(subject, data)
        if self.connected:
            self._route(Message(subject, data))

    def _route(self, message: Message) -> int:
        """Deliver to everyone who listens; how many did."""
        answer = next((a for bus in self.hub.buses if (a := bus.answer(message.subject))), None)
        if answer is not None and not answer.done():
            answer.set_result(message.data)
        listeners = [
            subscription
            for bus in self.hub.buses
            if bus.connected
            for subscription in bus.subscriptions
            if matches(subscription.pattern, message.subject)
        ]
        for listener in listeners:
            if listener.admit is None or listener.admit(message.subject, len(message.data)):
                listener.pump.deliver(message)
        return len(listeners)

    def answer(self, inbox: str) -> asyncio.Future[bytes] | None:
        return self._answers.get(inbox) if self.connected else None

    async def subscribe(
        self, subject: str, handler: Handler, admit: Admit | None = None, *, apart: bool = False
    ) -> MemorySubscription:
        await self.online(REQUEST_TIMEOUT_S)
        subscription = MemorySubscription(self, subject, handler, admit)
        self.subscriptions.append(subscription)
        return subscription

    async def request(self, subject: str, data: bytes, timeout_s: float = REQUEST_TIMEOUT_S) -> bytes:
        check_size(subject, data)
        if not self.connected:
            raise BusUnavailable("the bus is not reachable")
        inbox = f"_INBOX.{next(self._inboxes)}"
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[inbox] = answer
        try:
            if self._route(Message(subject, data, inbox)) == 0:
                raise NoResponder(f"no subscriber on {subject}")
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise TimedOut(f"no answer on {subject} within {timeout_s:g} s") from None
        finally:
            del self._answers[inbox]

    async def respond(self, message: Message, data: bytes) -> None:
        if message.reply:
            await self.publish(message.reply, data)

    async def append(
        self,
        subject: str,
        data: bytes,
        *,
        id: str,
        expect_last: int | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> int:
        check_event(subject, data)
        await self.online(timeout_s)
        seq = self.hub.store(subject, data, id, expect_last)
        if self._lose_ack:
            self._lose_ack = False
            raise BusUnavailable("the acknowledgement was lost")
        return seq

    async def read(self, after: int) -> AsyncGenerator[Record, None]:
        if after > self.hub.last:
            raise StreamRewound(f"the event stream ends at {self.hub.last}, before {after}")
        while not self._closed:
            if self.connected and after < self.hub.last:
                index = bisect_right(self.hub.records, after, key=lambda record: record.seq)
                if index < len(self.hub.records):
                    record = self.hub.records[index]
                    after = record.seq
                    yield record
                    continue
            await self.hub.change()

    async def trim(self, upto: int) -> None:
        await self.online(REQUEST_TIMEOUT_S)
        self.hub.forget_before(upto + 1)

    async def first_seq(self) -> int:
        await self.online(REQUEST_TIMEOUT_S)
        return self.hub.records[0].seq if self.hub.records else self.hub.last + 1

    async def last_seq(self, subject: str | None = None) -> int:
        await self.online(REQUEST_TIMEOUT_S)
        return self.hub.last if subject is None else self.hub.last_of.get(subject, 0)

    async def stored(self, of: str = "") -> StreamState:
        await self.online(REQUEST_TIMEOUT_S)
        counts = {subject: n for subject, n in self.hub.counts.items() if of and matches(of, subject)}
        return StreamState(await self.first_seq(), self.hub.last, self.hub.size, by_subject=counts)

    async def behind(self, server: str) -> int:
        return 0  # there is one copy

    async def takes_events(self, within_s: float) -> bool:
        return self.connected

    async def take_events(self, subjects: Sequence[str]) -> None:
        await self.online(REQUEST_TIMEOUT_S)
        self.hub.taken = tuple(subjects)

    def lease(self, name: str, holder: str, ttl_s: float) -> MemoryLease:
        return MemoryLease(self, name, holder, ttl_s)

    async def held_epoch(self, name: str) -> int:
        await self.online(REQUEST_TIMEOUT_S)
        entry = self.hub.leases.get(name)
        return entry.epoch if entry is not None and entry.token else 0

    async def put_object(self, name: str, data: bytes) -> None:
        await self.online(REQUEST_TIMEOUT_S)
        self.hub.objects[name] = bytes(data)

    async def get_object(self, name: str) -> bytes | None:
        await self.online(REQUEST_TIMEOUT_S)
        return self.hub.objects.get(name)

    async def object_names(self, prefix: str) -> list[str]:
        await self.online(REQUEST_TIMEOUT_S)
        return sorted(name for name in self.hub.objects if name.startswith(prefix))

    async def delete_object(self, name: str) -> None:
        await self.online(REQUEST_TIMEOUT_S)
        self.hub.objects.pop(name, None)

    async def cut(self, for_s: float) -> None:
        self.partition()
        asyncio.get_running_loop().call_later(for_s, lambda: None if self._closed else self.heal())

    async def close(self) -> None:
        self._closed = True
        if self in self.hub.buses:
            self.hub.buses.remove(self)
        for subscription in self.subscriptions:
            subscription.pump.cancel()
        self.subscriptions.clear()
        self.hub.wake()


if TYPE_CHECKING:
    _conforms: type[Bus] = MemoryBus
