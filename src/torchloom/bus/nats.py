"""The real bus, on NATS and JetStream.

Owns nothing but the assembly: a connection is `nats_link` (a large flow has one of its own), storing
`nats_stream`, reading `nats_reader`, the lease `nats_lease`. Objects go through nats-py's object store. An
agent uses `publish`, `subscribe`, `respond` and `append` only: its credentials allow no more.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torchloom.bus import nats_stream
from torchloom.bus.address import BusAddress
from torchloom.bus.nats_config import EVENT_STREAM, OBJECT_BUCKET
from torchloom.bus.nats_lease import NatsLease, held_epoch
from torchloom.bus.nats_link import Link, LinkSubscription
from torchloom.bus.nats_package import nats
from torchloom.bus.nats_reader import read_events
from torchloom.bus.protocol import (
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
from torchloom.errors import BusUnavailable

T = TypeVar("T")

OBJECT_TIMEOUT_S = 60.0
"""For a whole object, in chunks of 128 KiB that are each synced to disk."""


class NatsSubscription:
    def __init__(self, pump: HandlerPump, inner: LinkSubscription) -> None:
        self._pump = pump
        self._inner = inner

    @property
    def waiting(self) -> int:
        return self._pump.waiting

    async def unsubscribe(self) -> None:
        self._pump.stop()
        await self._inner.unsubscribe()


class NatsBus:
    """A `Bus`. Made by `connect`."""

    def __init__(self, link: Link, copies: int = 1) -> None:
        self._link = link
        self._copies = copies
        self._pumps: list[HandlerPump] = []
        self._second: Link | None = None
        self._opening = asyncio.Lock()

    @classmethod
    async def connect(
        cls, address: BusAddress, *, name: str, wait_s: float = 0.0, copies: int = 1
    ) -> NatsBus:
        """Connect as `name` (shown by NATS's own tools).

        What this bus stores has `copies` copies, on a cluster of at least so many servers.

        A server that is not there yet is tried again for `wait_s` seconds. Raises BusUnavailable (nobody
        there), NotAllowed (wrong credentials) or BusUnsuitable (too old). Once connected, the client
        reconnects after every loss, without limit.
        """
        link = Link(address, name)
        await link.open(wait_s)
        return cls(link, copies)

    @property
    def connected(self) -> bool:
        return self._link.connected

    @property
    def on_reconnect(self) -> list[Callable[[], Awaitable[None]]]:
        return self._link.on_reconnect

    async def provision(self) -> None:
        await nats_stream.provision(self._link, REQUEST_TIMEOUT_S, self._copies)

    async def publish(self, subject: str, data: bytes) -> None:
        check_size(subject, data)
        await self._link.publish(subject, data)

    async def subscribe(
        self, subject: str, handler: Handler, admit: Admit | None = None, *, apart: bool = False
    ) -> NatsSubscription:
        link = await self._flow() if apart else self._link
        await link.wait_connected(REQUEST_TIMEOUT_S)
        pump = HandlerPump(subject, handler)

        def take(subject: str, data: bytes, reply: str) -> None:
            if admit is None or admit(subject, len(data)):
                pump.deliver(Message(subject, data, reply))

        async def receive(message: Any) -> None:
            take(message.subject, message.data, message.reply)

        try:
            inner = await link.subscribe(subject, receive, take)
        except BaseException:
            pump.cancel()
            raise
        self._pumps.append(pump)
        return NatsSubscription(pump, inner)

    async def _flow(self) -> Link:
        """A second connection: on the first one, acknowledgements would arrive behind everything that the
        server has sent and we have not read yet, and the lease would be lost to a backlog of telemetry."""
        async with self._opening:
            if self._second is None:
                link = Link(self._link.address, f"{self._link.name} (flow)")
                await link.open(REQUEST_TIMEOUT_S)
                self._second = link
        return self._second

    async def request(self, subject: str, data: bytes, timeout_s: float = REQUEST_TIMEOUT_S) -> bytes:
        check_size(subject, data)
        answer: bytes = (await self._link.request(subject, data, timeout_s)).data
        return answer

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
        return await nats_stream.store(
            self._link, subject, data, id=id, expect_last=expect_last, timeout_s=timeout_s
        )

    def read(self, after: int) -> AsyncGenerator[Record, None]:
        return read_events(self._link, after)

    async def trim(self, upto: int) -> None:
        await nats_stream.api(
            self._link, f"STREAM.PURGE.{EVENT_STREAM}", {"seq": upto + 1}, REQUEST_TIMEOUT_S
        )

    async def first_seq(self) -> int:
        # An empty stream says 0 before its first event, and last + 1 when its history was cut off.
        return max(1, int((await self._state())["first_seq"]))

    async def last_seq(self, subject: str | None = None) -> int:
        if subject is None:
            return int((await self._state())["last_seq"])
        message = await nats_stream.get_message(
            self._link, EVENT_STREAM, {"last_by_subj": subject}, REQUEST_TIMEOUT_S
        )
        return 0 if message is None else int(message["seq"])

    async def _state(self) -> dict[str, Any]:
        info = await nats_stream.api(self._link, f"STREAM.INFO.{EVENT_STREAM}", None, REQUEST_TIMEOUT_S)
        state: dict[str, Any] = info["state"]
        return state

    async def stored(self, of: str = "") -> StreamState:
        asked = {"subjects_filter": of} if of else None
        info = await nats_stream.api(self._link, f"STREAM.INFO.{EVENT_STREAM}", asked, REQUEST_TIMEOUT_S)
        state = info["state"]
        return StreamState(
            first_seq=max(1, int(state["first_seq"])),
            last_seq=int(state["last_seq"]),
            bytes=int(state["bytes"]),
            most_bytes=max(0, int(info["config"].get("max_bytes", 0))),
            by_subject={str(subject): int(n) for subject, n in (state.get("subjects") or {}).items()},
        )

    async def behind(self, server: str) -> int:
        return await nats_stream.behind(self._link, server, REQUEST_TIMEOUT_S)

    async def takes_events(self, within_s: float) -> bool:
        return await nats_stream.takes_events(self._link, within_s)

    async def take_events(self, subjects: Sequence[str]) -> None:
        await nats_stream.take_events(self._link, subjects, REQUEST_TIMEOUT_S)

    def lease(self, name: str, holder: str, ttl_s: float) -> NatsLease:
        return NatsLease(self._link, name, holder, ttl_s)

    async def held_epoch(self, name: str) -> int:
        return await held_epoch(self._link, name, REQUEST_TIMEOUT_S)

    async def put_object(self, name: str, data: bytes) -> None:
        async def put(store: Any) -> None:
            await store.put(name, bytes(data))

        await self._with_objects(put)

    async def get_object(self, name: str) -> bytes | None:
        async def get(store: Any) -> bytes | None:
            try:
                return bytes((await store.get(name)).data)
            except nats.js.errors.NotFoundError:
                return None

        return await self._with_objects(get)

    async def object_names(self, prefix: str) -> list[str]:
        about = f"$O.{OBJECT_BUCKET}.M."
        asked = {"subjects_filter": f"{about}>"}
        found = await nats_stream.api(
            self._link, f"STREAM.INFO.OBJ_{OBJECT_BUCKET}", asked, REQUEST_TIMEOUT_S
        )
        encoded = [subject.removeprefix(about) for subject in found["state"].get("subjects") or {}]
        names = [base64.urlsafe_b64decode(name).decode() for name in encoded]
        return sorted(name for name in names if name.startswith(prefix))

    async def delete_object(self, name: str) -> None:
        """nats-py's own delete keeps a marker for every name forever, so both subjects are purged here."""

        async def nuid(store: Any) -> str:
            try:
                return str((await store.get_info(name)).nuid)
            except nats.js.errors.NotFoundError:
                return ""

        chunks = await self._with_objects(nuid)
        about = base64.urlsafe_b64encode(name.encode()).decode()
        for subject in (f"M.{about}", f"C.{chunks}") if chunks else ():
            purge = {"filter": f"$O.{OBJECT_BUCKET}.{subject}"}
            await nats_stream.api(self._link, f"STREAM.PURGE.OBJ_{OBJECT_BUCKET}", purge, REQUEST_TIMEOUT_S)

    async def _with_objects(self, use: Callable[[Any], Awaitable[T]]) -> T:
        """Use nats-py's object store, but stop waiting for a chunk when the connection is lost."""

        async def open_and_use() -> T:
            return await use(await self._link.client.jetstream().object_store(OBJECT_BUCKET))

        await self._link.wait_connected(REQUEST_TIMEOUT_S)
        using = asyncio.ensure_future(open_and_use())
        lost = asyncio.ensure_future(self._link.until_lost())
        try:
            await asyncio.wait([using, lost], timeout=OBJECT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            if not using.done():
                raise BusUnavailable("the object store did not answer in time")
            return using.result()
        except nats.errors.Error as error:
            raise BusUnavailable(f"the object store cannot be used now ({error})") from None
        finally:
            using.cancel()
            lost.cancel()

    async def cut(self, for_s: float) -> None:
        for link in filter(None, (self._link, self._second)):
            await link.cut(for_s)

    async def close(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        for link in filter(None, (self._second, self._link)):
            await link.close()


if TYPE_CHECKING:
    _conforms: type[Bus] = NatsBus
