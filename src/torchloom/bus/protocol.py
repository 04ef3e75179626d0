"""The seam between torchloom and its message bus.

Owns what a bus promises. `memory.py` and `nats.py` keep these promises and pass the same contract tests.
It knows nothing of jobs, events or encodings: subjects are strings, data is bytes.

Three kinds of traffic:

* **messages** (`publish`, `subscribe`, `request`, `respond`): at most once, lossy while disconnected;
* **events** (`append`, `read`): one durable, totally ordered stream over `loom.v1.event.>`;
* **state** (`lease`, `put_object`, `get_object`, `delete_object`): who acts, and snapshots of any size.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torchloom.errors import UsageError

EVENT_SUBJECTS = "loom.v1.event.>"
"""What the event stream holds. `append` to any other subject is a mistake."""

MAX_MESSAGE_BYTES = 1024 * 1024
"""Limit of one message or event (nats-server's default). Larger things go to `put_object`."""

LEADER = "leader"
"""Name of the lease of the weaver that acts."""

REQUEST_TIMEOUT_S = 5.0
"""How long an operation waits for the server before it raises `BusUnavailable`."""


def check_event(subject: str, data: bytes) -> None:
    """What every bus refuses to append, because no server could ever take it."""
    if not subject.startswith(EVENT_SUBJECTS[:-1]) or "*" in subject or ">" in subject:
        raise UsageError(
            f"{subject} is not a subject of the event stream", hint=f"append under {EVENT_SUBJECTS}"
        )
    check_size(subject, data)


def check_size(subject: str, data: bytes) -> None:
    if len(data) > MAX_MESSAGE_BYTES:
        raise UsageError(
            f"a message of {len(data)} bytes on {subject} is over the limit of {MAX_MESSAGE_BYTES}",
            hint="store it with put_object and send its name",
        )


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a subscriber sees it."""

    subject: str
    data: bytes
    reply: str = ""
    """Where an answer goes; empty when none is expected."""


@dataclass(frozen=True, slots=True)
class Record:
    """An event as the stream kept it."""

    seq: int
    """Place in the stream: 1, 2, 3 … with no promise that there are no gaps."""
    subject: str
    data: bytes
    at_ns: int
    """When the server stored it, nanoseconds since 1970 on the server's clock. The only `now` of an event."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """What the event stream holds."""

    first_seq: int
    """Of the oldest event kept, or of the next one when none is kept."""
    last_seq: int
    bytes: int
    most_bytes: int = 0
    """It takes no event beyond; 0: there is no limit of its own."""
    by_subject: dict[str, int] = field(default_factory=dict)
    """How many events each subject has, of the subjects that were asked for."""


Handler = Callable[[Message], Awaitable[None]]
"""Called with one message at a time, in order. An exception is logged and the next message is delivered."""


Admit = Callable[[str, int], bool]
"""Asked with subject and size of each message as it arrives; False drops it at once. Must not wait."""


class Subscription(Protocol):
    @property
    def waiting(self) -> int:
        """Messages that have arrived and were not handed over yet."""
        ...

    async def unsubscribe(self) -> None:
        """No handler call begins after this returns."""
        ...


class Lease(Protocol):
    """The right to act alone. Keep one object per candidate and call `acquire` every fraction of the TTL."""

    @property
    def epoch(self) -> int | None:
        """The epoch this candidate holds, or None. Other holders' epochs are never equal to it."""
        ...

    async def acquire(self, above: int = 0) -> int | None:
        """Try once. The epoch, or None while somebody else holds the lease.

        The epoch is strictly greater than that of every earlier acquisition by any holder, and than `above`:
        the highest that the caller knows of, in case the store of the leases was made anew.
        """
        ...

    async def renew(self) -> bool:
        """Hold it for another TTL. False: the lease is lost for good, stop acting at once.

        Raises BusUnavailable when the server cannot be asked: stop acting when the TTL has passed since the
        start of the last successful call (`expired`).
        """
        ...

    @property
    def expired(self) -> bool:
        """True when the TTL has passed on our own clock since the last success, or if never held."""
        ...

    async def release(self) -> None:
        """Give it up so that the next candidate need not wait. Does nothing if it is not held."""
        ...


class Bus(Protocol):
    @property
    def connected(self) -> bool: ...

    @property
    def on_reconnect(self) -> list[Callable[[], Awaitable[None]]]:
        """Called one after the other each time the connection is back. Append to it."""
        ...

    async def provision(self) -> None:
        """Create stream, lease bucket and object store if they are missing. Weaver only; idempotent."""
        ...

    async def publish(self, subject: str, data: bytes) -> None:
        """Send and forget, never wait. Dropped silently while the server is away or does not keep up."""
        ...

    async def subscribe(
        self, subject: str, handler: Handler, admit: Admit | None = None, *, apart: bool = False
    ) -> Subscription:
        """Receive what is published from now on: the server knows of us when this returns. `*` and a final
        `>` are wildcards. Lasts over reconnects; what was published meanwhile is lost. `apart`: it is so much
        that nothing else must wait in line with it; such messages cannot be answered."""
        ...

    async def request(self, subject: str, data: bytes, timeout_s: float = REQUEST_TIMEOUT_S) -> bytes:
        """Publish and wait for the first answer.

        Raises NoResponder at once when nobody listens, TimedOut when nobody answers, BusUnavailable while
        disconnected.
        """
        ...

    async def respond(self, message: Message, data: bytes) -> None:
        """Answer a request. A message that asks for no answer gets none. Lossy like `publish`."""
        ...

    async def append(
        self,
        subject: str,
        data: bytes,
        *,
        id: str,
        expect_last: int | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> int:
        """Store an event durably and return its sequence.

        The same call again (same `id`, same `expect_last`) returns the first sequence and stores nothing;
        without `expect_last` only within the de-duplication window of an hour, beyond it the reducer
        de-duplicates. `expect_last` is the sequence of the last event *on this subject* (0: none yet);
        Conflict when it is another. Raises BusUnavailable when no acknowledgement came in time: the event may
        or may not be stored, so make the same call again. Agents have no right to read the stream and so must
        not use `expect_last`.
        """
        ...

    def read(self, after: int) -> AsyncGenerator[Record, None]:
        """Every event with a sequence greater than `after`, in order, then live, without end.

        Survives reconnects and server restarts without loss or duplicate. Where history was cut off it begins
        with the oldest event there is: compare `first_seq()`. Raises StreamRewound when the stream ends
        before `after`. Ends when the bus is closed. Leave it with `contextlib.aclosing` when breaking out.
        """
        ...

    async def trim(self, upto: int) -> None:
        """Drop every event up to and including this sequence, for good. Weaver only; idempotent."""
        ...

    async def first_seq(self) -> int:
        """Sequence of the oldest event kept, or of the next one when none is kept."""
        ...

    async def last_seq(self, subject: str | None = None) -> int:
        """Sequence of the newest event, of the stream or of one subject; 0 when there is none."""
        ...

    async def stored(self, of: str = "") -> StreamState:
        """What the stream holds now; `of` is a pattern of the subjects whose events are counted one by one.
        Answers also while the stream is overloaded. Weaver only."""
        ...

    async def behind(self, server: str) -> int:
        """How many messages the copies that a server of a cluster has are behind, at least 1 if one of them
        does not follow; 0 if none does not. Weaver only."""
        ...

    async def takes_events(self, within_s: float) -> bool:
        """Whether the stream takes an event of the weaver within this time. Stores nothing."""
        ...

    async def take_events(self, subjects: Sequence[str]) -> None:
        """Let the stream take events under these subjects from now on and refuse all others: an append there
        raises BusUnavailable and can be tried again. What is stored stays. Weaver only; idempotent."""
        ...

    def lease(self, name: str, holder: str, ttl_s: float) -> Lease:
        """A candidate for the lease `name`. `holder` must be unique to this process."""
        ...

    async def held_epoch(self, name: str) -> int:
        """The epoch with which the lease `name` is held, as the server has it now; 0 if it is free.

        The only word about an epoch that is believed. Agents may call it, too.
        """
        ...

    async def put_object(self, name: str, data: bytes) -> None:
        """Store under a name, replacing what was there: readers see the old or the new, whole."""
        ...

    async def get_object(self, name: str) -> bytes | None: ...

    async def object_names(self, prefix: str) -> list[str]:
        """The names of all objects that begin so."""
        ...

    async def delete_object(self, name: str) -> None:
        """Remove it and all that was kept about it. One that is not there is no mistake."""
        ...

    async def cut(self, for_s: float) -> None:
        """Be without a connection for so long, as if the network were gone. For trying out what happens."""
        ...

    async def close(self) -> None:
        """End every subscription and reader. Idempotent."""
        ...
