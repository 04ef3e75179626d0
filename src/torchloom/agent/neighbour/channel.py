"""An encrypted connection between two agents that know the secret of one job.

Both sides add a random number, from which each connection has keys of its own: a recorded conversation cannot
be played again. Messages are encrypted with AES-256-GCM and numbered: one that was changed, left out or put
elsewhere is refused. Bytes of files go through buffers that are used again, because fresh memory for each
message takes more time than its encryption. Owns the sockets and the framing, not what is said.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from msgspec import Struct

from torchloom.errors import LoomError

STALLED_S = 10.0
"""A connection on which nothing moves for so long is given up."""
CHUNK = 1 << 20
_HELLO = struct.Struct("<8sH")
_MAGIC = b"LOOMNBR2"
_RANDOM = 32
_LENGTH = struct.Struct("<I")
_SEAL = 16
_LONGEST = CHUNK + 4096
_MOST = _LONGEST + 64
"""The size of a buffer: a cipher wants room for a block more than it fills."""


class NeighbourFailed(LoomError):
    """A copy could not be sent, taken or fetched."""


class ChannelState(Struct, frozen=True):
    """What another process needs besides the socket to continue a conversation."""

    send_key: bytes
    receive_key: bytes
    sent: int
    received: int


class Channel:
    """Messages over a socket, for which both sides need the job's key."""

    def __init__(self, sock: socket.socket, send_key: bytes, receive_key: bytes) -> None:
        self.socket = sock
        with suppress(OSError):  # a short message after a long one must not wait for an acknowledgement
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._out, self._in = _Cipher(send_key), _Cipher(receive_key)
        self._plain = self._sealed = memoryview(b"")

    @classmethod
    def resume(cls, sock: socket.socket, state: ChannelState) -> Channel:
        """Continue where another process has stopped."""
        channel = cls(sock, state.send_key, state.receive_key)
        channel._out.number, channel._in.number = state.sent, state.received
        return channel

    def state(self) -> ChannelState:
        return ChannelState(self._out.key, self._in.key, self._out.number, self._in.number)

    def send(self, data: bytes) -> None:
        if len(data) > _LONGEST:
            raise NeighbourFailed("a message is too long")
        self._plain_room()[: len(data)] = data
        self._send(len(data))

    def send_file(self, descriptor: int, at: int, most: int) -> int:
        """Send up to `most` bytes of a file as one message; how many. Raises NeighbourFailed, OSError."""
        count = os.preadv(descriptor, [self._plain_room()[: min(most, CHUNK)]], at)
        if count:
            self._send(count)
        return count

    def receive(self) -> bytes:
        return bytes(self._receive())

    def receive_file(self, descriptor: int, at: int, most: int) -> int:
        """Write the next message, which may be no longer, to a file; how much it was. Raises NeighbourFailed;
        OSError if it cannot be written."""
        message = self._receive()
        if not message or len(message) > most:
            raise NeighbourFailed("the state was not sent as announced")
        written = 0
        while written < len(message):
            written += os.pwrite(descriptor, message[written:], at + written)
        return written

    def say(self, **facts: Any) -> None:
        self.send(json.dumps(facts).encode())

    def hear(self) -> dict[str, Any]:
        try:
            found = json.loads(self.receive())
        except (ValueError, RecursionError) as error:
            raise NeighbourFailed("a message cannot be read") from error
        if not isinstance(found, dict):
            raise NeighbourFailed("a message cannot be read")
        return found

    def close(self) -> None:
        self.socket.close()

    def hang_up(self) -> None:
        """End it from another thread: whoever waits for a message gets an error."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _plain_room(self) -> memoryview:
        """Where messages are read and written; most connections exchange short ones and need none of it."""
        if not self._plain:
            self._plain = memoryview(bytearray(_MOST))
            self._sealed = memoryview(bytearray(_LENGTH.size + _MOST))
        return self._plain

    def _send(self, count: int) -> None:
        """What is in the buffer for plain text."""
        end = _LENGTH.size + count + _SEAL
        _LENGTH.pack_into(self._sealed, 0, count + _SEAL)
        seal = self._out.encrypt(self._plain[:count], self._sealed[_LENGTH.size :])
        self._sealed[end - _SEAL : end] = seal
        try:
            self.socket.sendall(self._sealed[:end])
        except OSError as error:
            raise NeighbourFailed(f"the connection failed ({error})") from error

    def _receive(self) -> memoryview:
        """The next message; valid until something else is sent or received."""
        plain = self._plain_room()
        try:
            (length,) = _LENGTH.unpack(_exactly(self.socket, _LENGTH.size))
            if not _SEAL <= length <= _LONGEST + _SEAL:
                raise NeighbourFailed("a message is too long, or too short")
            _fill(self.socket, self._sealed[:length])
        except OSError as error:
            raise NeighbourFailed(f"the connection failed ({error})") from error
        count = length - _SEAL
        if not self._in.decrypt(self._sealed[:count], bytes(self._sealed[count:length]), plain):
            raise NeighbourFailed("a message was damaged on the way, or its sender has another key")
        return plain[:count]


class _Cipher:
    """AES-256-GCM of one direction of one connection; the number of a message is its nonce."""

    def __init__(self, key: bytes) -> None:
        # Only agents whose jobs keep copies need it, and importing it takes a while.
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._cipher, self._mode, self._wrong = Cipher, modes.GCM, InvalidTag
        self._key, self.key, self.number = algorithms.AES(key), key, 0

    def encrypt(self, message: memoryview, into: memoryview) -> bytes:
        """The seal of the next message."""
        made = self._cipher(self._key, self._mode(self._nonce())).encryptor()
        made.update_into(message, into)
        made.finalize()
        return made.tag

    def decrypt(self, sealed: memoryview, seal: bytes, into: memoryview) -> bool:
        """Whether it is the next message, and unharmed; only then is what was written of any use."""
        made = self._cipher(self._key, self._mode(self._nonce(), seal)).decryptor()
        made.update_into(sealed, into)
        try:
            made.finalize()
        except self._wrong:
            return False
        return True

    def _nonce(self) -> bytes:
        self.number += 1
        return self.number.to_bytes(12, "little")


class Calls:
    """The connections of one piece of work, which another thread may end at once."""

    def __init__(self) -> None:
        self._open: set[Channel] = set()
        self._lock, self._over = threading.Lock(), False

    @contextmanager
    def call(self, host: str, port: int, job: str, key: bytes) -> Iterator[Channel]:
        """Raises NeighbourFailed."""
        with call(host, port, job, key) as channel:
            with self._lock:
                if self._over:
                    raise NeighbourFailed("it is not wanted any more")
                self._open.add(channel)
            try:
                yield channel
            finally:
                with self._lock:
                    self._open.discard(channel)

    def hang_up(self) -> None:
        with self._lock:
            self._over = True
            for channel in self._open:
                channel.hang_up()


def call(host: str, port: int, job: str, key: bytes) -> Channel:
    """Connect to another agent. Raises NeighbourFailed."""
    try:
        sock = socket.create_connection((host, port), timeout=STALLED_S)
    except OSError as error:
        raise NeighbourFailed(f"{host}:{port} cannot be reached ({error})") from error
    try:
        mine, name = secrets.token_bytes(_RANDOM), job.encode()
        sock.sendall(_HELLO.pack(_MAGIC, len(name)) + name + mine)
        theirs = _exactly(sock, _RANDOM)
        return Channel(sock, call_key(key, b"to", mine, theirs), call_key(key, b"from", mine, theirs))
    except OSError as error:
        sock.close()
        raise NeighbourFailed(f"{host}:{port} refused the connection ({error})") from error
    except NeighbourFailed:
        sock.close()
        raise


def greet(sock: socket.socket) -> tuple[str, bytes]:
    """The job that a caller names, and its random number. Raises NeighbourFailed."""
    sock.settimeout(STALLED_S)
    try:
        magic, length = _HELLO.unpack(_exactly(sock, _HELLO.size))
        if magic != _MAGIC or length > 256:
            raise NeighbourFailed("the caller is no agent")
        return _exactly(sock, length).decode(), _exactly(sock, _RANDOM)
    except (OSError, ValueError) as error:
        raise NeighbourFailed(f"the caller said nothing that can be read ({error})") from error


def answer(sock: socket.socket, theirs: bytes, key: bytes) -> Channel:
    """The other end of `call`, once the job's key was found."""
    mine = secrets.token_bytes(_RANDOM)
    try:
        sock.sendall(mine)
    except OSError as error:
        raise NeighbourFailed(f"the connection failed ({error})") from error
    return Channel(sock, call_key(key, b"from", theirs, mine), call_key(key, b"to", theirs, mine))


def call_key(key: bytes, direction: bytes, caller: bytes, called: bytes) -> bytes:
    """The key of one direction of one connection."""
    return hmac.new(key, direction + caller + called, hashlib.sha256).digest()


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    _fill(sock, memoryview(data))
    return bytes(data)


def _fill(sock: socket.socket, view: memoryview) -> None:
    while view:
        got = sock.recv_into(view)
        if not got:
            raise ConnectionError("it was closed")
        view = view[got:]
