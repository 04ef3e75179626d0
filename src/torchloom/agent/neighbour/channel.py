"""An encrypted connection between two agents that know the secret of one job.

Both sides add a random number, so a recorded conversation cannot be played again. Messages are encrypted in
order (XChaCha20-Poly1305, libsodium's secretstream): one that was changed, left out or put elsewhere is
refused. Owns the sockets and the framing, not what is said.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
from typing import Any

from nacl.bindings import crypto_secretstream as stream
from nacl.exceptions import CryptoError

from torchloom.errors import LoomError

STALLED_S = 10.0
"""A connection on which nothing moves for so long is given up."""
CHUNK = 1 << 20
_HELLO = struct.Struct("<8sH")
_MAGIC = b"LOOMNBR1"
_RANDOM = 32
_LENGTH = struct.Struct("<I")
_MOST = CHUNK + 4096


class NeighbourFailed(LoomError):
    """A copy could not be sent, taken or fetched."""


class Channel:
    """Messages over a socket, after both sides have shown that they know the job's key."""

    def __init__(self, sock: socket.socket, send_key: bytes, receive_key: bytes) -> None:
        self._socket = sock
        self._out, self._in = (stream.crypto_secretstream_xchacha20poly1305_state() for _ in range(2))
        try:
            sock.sendall(stream.crypto_secretstream_xchacha20poly1305_init_push(self._out, send_key))
            head = _exactly(sock, stream.crypto_secretstream_xchacha20poly1305_HEADERBYTES)
            stream.crypto_secretstream_xchacha20poly1305_init_pull(self._in, head, receive_key)
        except (OSError, CryptoError) as error:
            raise NeighbourFailed(f"the connection failed ({error})") from error

    def send(self, data: bytes) -> None:
        try:
            sealed = stream.crypto_secretstream_xchacha20poly1305_push(self._out, data)
            self._socket.sendall(_LENGTH.pack(len(sealed)) + sealed)
        except OSError as error:
            raise NeighbourFailed(f"the connection failed ({error})") from error

    def receive(self) -> bytes:
        try:
            (length,) = _LENGTH.unpack(_exactly(self._socket, _LENGTH.size))
            if length > _MOST:
                raise NeighbourFailed("a message is too long")
            sealed = _exactly(self._socket, length)
            message, _ = stream.crypto_secretstream_xchacha20poly1305_pull(self._in, sealed)
            return bytes(message)
        except OSError as error:
            raise NeighbourFailed(f"the connection failed ({error})") from error
        except (CryptoError, ValueError) as error:
            raise NeighbourFailed(
                "a message was damaged on the way, or its sender has another key"
            ) from error

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
        self._socket.close()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
    view, got = memoryview(data), 0
    while got < count:
        more = sock.recv_into(view[got:])
        if not more:
            raise ConnectionError("it was closed")
        got += more
    return bytes(data)
