"""nats-py's client with seven additions: it signs in only where the server's end belongs to the right user, a
closed client stays closed, a server whose TLS fails does not keep it from the others, the TLS files are read
anew for each connection, a server that falls silent is left at once, and servers that answer but do not let
it in, as after `loom node revoke`, are asked less and less often, and messages of large flows are handed over
without a queue and a task between them and the receiver, which cost more than reading them.

Owns these seven. The reconnecting and everything above it is `nats_link`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Callable

from torchloom import peer
from torchloom.bus.nats_package import nats
from torchloom.errors import UsageError

CLOSE_WITHIN_S = 2.0
REFUSED_FIRST_S, REFUSED_MOST_S = 0.5, 60.0


Straight = Callable[[str, bytes, str], None]
"""Takes subject, data and reply subject of a message at once, in the task that reads the socket."""


class StrangeServer(nats.errors.Error):  # type: ignore[misc] # nats-py has no types
    """The process that listens where our server should be belongs to somebody else."""


class Refusals:
    """How often in a row a server took the connection and did not let us in; kept over several clients.

    A server mostly closes before its reason could be read, so it is counted, not understood. A server that is
    away takes no connection and counts nothing: what was lost must be back soon.
    """

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self.count = 0

    def wait_s(self) -> float:
        """How long to wait before the next try; not at all until each server was tried."""
        over = self.count - self._servers
        if over < 0:
            return 0.0
        # Spread, so that many revoked hosts do not come at once.
        return min(REFUSED_MOST_S, REFUSED_FIRST_S * 2.0 ** min(over, 16)) * random.uniform(1.0, 1.25)


class NatsClient(nats.aio.client.Client):  # type: ignore[misc] # nats-py has no types
    def __init__(
        self, owner: int | None, refusals: Refusals, tls: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        super().__init__()
        self._tls = tls
        self._refusals = refusals
        self._owner = owner
        self._ended = False
        self._straight: dict[int, Straight] = {}
        self.checked = False
        """Whether the check below ran for this connection: a new nats-py must not lose it silently."""

    def _connect_command(self) -> bytes:
        """Called by nats-py between the server's greeting and our first byte, also on every reconnect.

        By then somebody has accepted the connection, so the kernel can say who.
        """
        self.checked = True
        if self._owner is not None:
            found = peer.owner_of_peer(self._transport._bare_io_writer.get_extra_info("socket"))
            if found != self._owner:
                raise StrangeServer(
                    f"a process of user {found} answers there, not ours"
                    if found is not None
                    else "the kernel does not say whose process answers there"
                )
        command: bytes = super()._connect_command()
        return command

    def hand_straight(self, subscription: object, to: Straight) -> None:
        """From now on, messages of this subscription go to `to`; its callback is not called any more."""
        self._straight[subscription._id] = to  # type: ignore[attr-defined] # nats-py has no types

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        to = self._straight.get(sid)
        if to is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        to(subject.decode(), data, reply.decode())

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        super()._remove_sub(sid, max_msgs)
        self._straight.pop(sid, None)

    def end(self) -> None:
        """Try no server again. Closing alone does not do that while nats-py connects for the first time: it
        swallows a cancellation that arrives while it puts a failed connection away."""
        self._ended = True

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """While it connects, nats-py closes what it has of a server that failed, and tries the next one.

        After a failed TLS handshake it would wait for ever for the end of a stream that TLS has taken over.
        """
        self._ended = self._ended or status == self.CLOSED
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await super()._close(status, do_cbs)

    async def _process_op_err(self, e: Exception) -> None:
        """The connection has failed. It is not closed politely: with TLS that waits half a minute for an
        answer, which a host that was cut off or hangs does not give."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None and not self.is_closed and not self.is_reconnecting:
            writer.transport.abort()
        await super()._process_op_err(e)

    async def _connect_to_server(self, s: object) -> None:
        """End the reconnecting of a closed client; use the certificates of today, not of the first time.

        nats-py cancels that task. `asyncio.wait_for` loses a cancellation that arrives in the moment a
        connection is refused (Python 3.11), and the task then continues for ever.
        """
        if not self._ended:
            await asyncio.sleep(self._refusals.wait_s())
        if self._ended:
            raise asyncio.CancelledError
        if self._tls is not None:
            with contextlib.suppress(UsageError):  # being replaced just now: the files of before may still do
                self.options["tls"] = self._tls()
        await super()._connect_to_server(s)
        self._refusals.count += 1

    async def _process_connect_init(self) -> None:
        await super()._process_connect_init()
        self._refusals.count = 0
