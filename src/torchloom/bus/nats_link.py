"""One connection to NATS that always comes back.

Owns the nats-py client: the first connection with its clear refusals, endless reconnecting, re-subscribing,
and the translation of nats-py's errors into ours. Everything above it (`nats.py`, `nats_reader.py`,
`nats_lease.py`) asks the link and imports no nats-py.

nats-py reconnects by itself, but closes for good on any protocol error it does not know, sometimes without
notice (its close callback is skipped when the last flush fails). A closed client is therefore noticed
by looking, and replaced by a new one with the same subscriptions.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from torchloom.bus.address import BusAddress
from torchloom.bus.keys import signature
from torchloom.bus.nats_client import NatsClient, Refusals, Straight
from torchloom.bus.nats_config import MIN_SERVER_VERSION
from torchloom.bus.nats_package import nats
from torchloom.errors import BusUnavailable, BusUnsuitable, NoResponder, NotAllowed, TimedOut

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
RECONNECT_WAIT_S = 0.1
CONNECT_TIMEOUT_S = 5.0
PING_EVERY_S = 3.0
"""A server that does not answer three in a row is left for another one."""
MAX_UNSENT_BYTES = 4 * 1024 * 1024
ROOM_TRIES = 10
ROOM_WAIT_S = 0.005

Callback = Callable[[Any], Awaitable[None]]


def credentials(address: BusAddress) -> dict[str, Any]:
    """How nats-py proves who we are: with a key alone, or with a key and signed claims about it."""
    if not address.claims:
        return {"nkeys_seed_str": address.seed or None}
    return {
        "user_jwt_cb": address.claims.encode,
        "signature_cb": lambda nonce: signature(address.seed, nonce),
    }


class LinkSubscription:
    """A subscription that moves to the new client when the old one had to be replaced."""

    def __init__(self, link: Link, subject: str, callback: Callback, straight: Straight | None) -> None:
        self.subject = subject
        self._callback, self._straight = callback, straight
        self._inner: Any = None
        self._link = link

    async def begin(self, client: Any) -> None:
        """Also again, with another client."""
        self._inner = await client.subscribe(self.subject, cb=self._callback)
        if self._straight is not None:
            client.hand_straight(self._inner, self._straight)

    async def unsubscribe(self) -> None:
        self._link.subscriptions.discard(self)
        # The client may be closed or replaced by now: then the server has forgotten us anyway.
        with contextlib.suppress(nats.errors.Error):
            if self._inner is not None:
                await self._inner.unsubscribe()


class Link:
    def __init__(self, address: BusAddress, name: str) -> None:
        self.address = address
        self.name = name
        self.subscriptions: set[LinkSubscription] = set()
        self.on_reconnect: list[Callable[[], Awaitable[None]]] = []
        self.closed = False
        self._refusals = Refusals(len(address.servers))
        self._client = NatsClient(address.owner, self._refusals)
        self._lost = asyncio.Event()
        """Set, then replaced, each time the connection is lost: callers stop waiting for an answer."""
        self._back = asyncio.Event()
        self._cut_until_s = 0.0
        """Until when no new connection is made, because somebody wants it so."""
        self._stuck = False
        """The server did not take our data the last time we waited for it."""
        self._denials: dict[str, set[asyncio.Future[Any]]] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._greeter: asyncio.Task[None] | None = None

    # ---- life ----

    async def open(self, wait_s: float) -> None:
        """Connect. A server that is not there is tried again for `wait_s`; a refusal is final at once."""
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            try:
                self._client = await self._connect()
                break
            except BusUnavailable:
                if asyncio.get_running_loop().time() >= deadline:
                    raise
                await asyncio.sleep(RECONNECT_WAIT_S)
        self._back.set()
        self._watcher = asyncio.create_task(self._watch(), name=f"nats link {self.name}")

    async def close(self) -> None:
        self.closed = True
        self._lose()
        for task in (self._watcher, self._greeter):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
                await asyncio.wait([task])
        await self._discard(self._client)

    async def cut(self, for_s: float) -> None:
        """Lose the connection; it comes back after so long, as any lost one does."""
        log.warning("the connection to NATS is cut for %g s on purpose", for_s)
        self._cut_until_s = asyncio.get_running_loop().time() + for_s
        await self._discard(self._client)
        self._lose()

    @property
    def connected(self) -> bool:
        return bool(self._client.is_connected) and not self.closed

    async def _connect(self) -> Any:
        tls = None if self.address.tls is None else self.address.tls.context
        client = NatsClient(self.address.owner, self._refusals, tls)
        errors: list[Exception] = []
        enough = asyncio.Event()

        async def failed(error: Exception) -> None:
            if client is self._client:
                self._noticed(error)
                return
            errors.append(error)
            if len(errors) >= len(self.address.servers):
                enough.set()

        async def lost() -> None:
            if client is self._client:
                self._lose()

        async def back() -> None:
            if client is self._client:
                self._regain()

        connecting = asyncio.ensure_future(
            client.connect(
                list(self.address.servers),
                name=self.name,
                user=self.address.user or None,
                password=self.address.password or None,
                **credentials(self.address),
                tls=None if tls is None else tls(),
                inbox_prefix=self.address.inbox_prefix,
                error_cb=failed,
                disconnected_cb=lost,
                reconnected_cb=back,
                closed_cb=lost,
                allow_reconnect=True,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_WAIT_S,
                connect_timeout=CONNECT_TIMEOUT_S,
                ping_interval=PING_EVERY_S,
                max_outstanding_pings=2,
                # Above our own limit, so that nats-py never makes a publisher wait.
                pending_size=4 * MAX_UNSENT_BYTES,
            )
        )
        giving_up = asyncio.ensure_future(enough.wait())
        try:
            await asyncio.wait([connecting, giving_up], return_when=asyncio.FIRST_COMPLETED)
            if connecting.done() and connecting.exception() is None:
                self._check_version(client)
                if not client.checked:
                    raise BusUnsuitable(
                        "this nats-py does not let us check who answers",
                        hint="install a version that is tested",
                    )
                return client
            raise self._refusal(errors[-1] if errors else connecting.exception())
        except BaseException:
            client.end()
            connecting.cancel()
            await asyncio.wait([connecting])
            await self._discard(client)
            raise
        finally:
            giving_up.cancel()

    def _refusal(self, error: BaseException | None) -> Exception:
        text = str(error).lower()
        if "authorization" in text or "authentication" in text:
            return NotAllowed(
                f"the NATS server at {self.address} refused the credentials of "
                + (f"user {self.address.user!r}" if self.address.user else "this key"),
                hint="check the user and password in the NATS address"
                if not self.address.claims
                else "it may have been revoked; a new `loom join` gets a new one",
            )
        why = "no answer" if isinstance(error, TimeoutError) else str(error) or "no reason given"
        return BusUnavailable(
            f"no NATS server can be reached at {self.address} ({why})", hint="start it or correct the address"
        )

    def _check_version(self, client: Any) -> None:
        version = client.connected_server_version
        found = (version.major, version.minor, version.patch)
        if found < MIN_SERVER_VERSION:
            is_, needed = (".".join(map(str, v)) for v in (found, MIN_SERVER_VERSION))
            raise BusUnsuitable(
                f"the NATS server at {self.address} is version {is_}, torchloom needs {needed} or later",
                hint="update nats-server",
            )

    @staticmethod
    async def _discard(client: Any) -> None:
        with contextlib.suppress(OSError, nats.errors.Error):
            await client.close()

    async def _watch(self) -> None:
        """Replace a client that closed itself. The only task of the link."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if not self._client.is_closed or asyncio.get_running_loop().time() < self._cut_until_s:
                continue
            self._lose()
            try:
                client = await self._connect()
                for subscription in self.subscriptions:
                    await subscription.begin(client)
                await self._round_trip(client)
            except (BusUnavailable, NotAllowed, BusUnsuitable, nats.errors.Error) as error:
                log.warning("%s; trying again", error)
                continue
            self._client = client
            self._regain()

    @staticmethod
    async def _round_trip(client: Any) -> None:
        """Return when the server has seen everything sent before.

        nats-py's flush alone does not do that: its PING overtakes what still waits in the client's buffer.
        """
        while client.pending_data_size > 0 and client.is_connected:
            await asyncio.sleep(0)
        await client.flush()

    def _lose(self) -> None:
        self._back.clear()
        self._lost.set()
        self._lost = asyncio.Event()

    def _regain(self) -> None:
        log.info("connected to NATS again")
        self._back.set()
        # Not in nats-py's own reconnect task, which is cancelled when the connection breaks again.
        self._greeter = asyncio.ensure_future(self._greet())

    async def _greet(self) -> None:
        for callback in list(self.on_reconnect):
            await callback()

    def _noticed(self, error: Exception) -> None:
        text = str(error).lower()
        if "permissions violation" in text:
            for subject, waiting in self._denials.items():
                if f'"{subject.lower()}"' in text:
                    for future in waiting:
                        if not future.done():
                            future.set_exception(
                                NotAllowed(
                                    f"{self.address.user or 'this client'} has no right to use {subject}"
                                )
                            )
            return
        log.debug("nats: %s", error)

    # ---- use ----

    @contextlib.contextmanager
    def _denial(self, subject: str) -> Iterator[asyncio.Future[Any]]:
        """A future that fails if the server denies us the subject, which it reports asynchronously."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._denials.setdefault(subject, set()).add(future)
        try:
            yield future
        finally:
            self._denials[subject].discard(future)
            if not self._denials[subject]:
                del self._denials[subject]
            if not future.done():
                future.cancel()

    async def wait_connected(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not self.connected:
            if self.closed:
                raise BusUnavailable("this connection to NATS was closed")
            if (left := deadline - loop.time()) <= 0:
                raise BusUnavailable(f"NATS at {self.address} cannot be reached now")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._back.wait()
            if not self.connected:
                await asyncio.sleep(min(left, RECONNECT_WAIT_S))

    async def until_lost(self) -> None:
        await self._lost.wait()

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Send if there is a connection that takes it, else drop; never wait for a server that is stuck."""
        if self.connected and await self._has_room(len(data)):
            with contextlib.suppress(nats.errors.ConnectionClosedError, nats.errors.OutboundBufferLimitError):
                await self._client.publish(subject, data, reply=reply)

    async def _has_room(self, size: int) -> bool:
        """False while the unsent data is over the limit.

        nats-py would wait for the socket without end. We wait a moment, once, because a burst that a healthy
        server takes needs only that.
        """
        for _ in range(1 if self._stuck else ROOM_TRIES):
            if self._client.pending_data_size + size <= MAX_UNSENT_BYTES:
                self._stuck = False
                return True
            await asyncio.sleep(0 if self._stuck else ROOM_WAIT_S)
        self._stuck = True
        return False

    async def subscribe(
        self, subject: str, callback: Callback, straight: Straight | None = None
    ) -> LinkSubscription:
        """Returns when the server knows of it. With `straight`, messages go there instead, without nats-py's
        queue in between and without their headers."""
        subscription = LinkSubscription(self, subject, callback, straight)
        with self._denial(subject) as denied:
            try:
                await subscription.begin(self._client)
                self.subscriptions.add(subscription)
                await self._round_trip(self._client)
            except (nats.errors.Error, TimeoutError) as error:
                await subscription.unsubscribe()
                raise BusUnavailable(f"could not subscribe to {subject} ({error})") from None
            if denied.done():
                await subscription.unsubscribe()
                denied.result()
        return subscription

    async def request(
        self, subject: str, data: bytes, timeout_s: float, headers: dict[str, str] | None = None
    ) -> Any:
        """The first answer. Raises NoResponder, NotAllowed, BusUnavailable (connection lost) or TimedOut."""
        if not self.connected:
            raise BusUnavailable(f"NATS at {self.address} cannot be reached now")
        with self._denial(subject) as denied:
            answer = asyncio.ensure_future(
                self._client.request(subject, data, timeout=timeout_s, headers=headers)
            )
            lost = asyncio.ensure_future(self._lost.wait())
            try:
                await asyncio.wait([answer, lost, denied], return_when=asyncio.FIRST_COMPLETED)
                if answer.done():
                    return answer.result()
                if denied.done():
                    return denied.result()
                raise BusUnavailable(f"the connection to NATS was lost during a request on {subject}")
            except nats.errors.NoRespondersError:
                raise NoResponder(f"no subscriber on {subject}") from None
            except nats.errors.TimeoutError:
                raise TimedOut(f"no answer on {subject} within {timeout_s:g} s") from None
            except (nats.errors.Error, OSError) as error:
                raise BusUnavailable(f"a request on {subject} failed ({error})") from None
            finally:
                answer.cancel()
                lost.cancel()

    async def api(self, verb: str, body: dict[str, Any] | None, timeout_s: float) -> dict[str, Any]:
        """One call of the JetStream API; the answer may hold an `error`."""
        data = json.dumps(body).encode() if body is not None else b""
        answer = await self.request(f"$JS.API.{verb}", data, timeout_s)
        found: dict[str, Any] = json.loads(answer.data)
        return found

    @property
    def client(self) -> Any:
        """The nats-py client of this moment, for its object store."""
        return self._client
