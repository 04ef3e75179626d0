"""An encrypted connection between two nodes of a torchft job, without threads; and bytes carried over it.

The handshake and the encryption are those of agent/neighbour/channel.py: whoever does not know the key of the
torchft job can neither say nor read anything. Owns the sockets and the framing, not what is said.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import struct

from nacl.bindings import crypto_secretstream as stream
from nacl.exceptions import CryptoError

from torchloom.agent.neighbour.channel import call_key

CONNECT_S = 3.0
_SILENT_S = 10
"""What was sent and not acknowledged for so long means that the connection is lost."""
_HELLO = struct.Struct("<8sH")
_MAGIC = b"LOOMLHT1"
_RANDOM = 32
_LENGTH = struct.Struct("<I")
_MOST = 4 << 20
_PIECE = 64 << 10
_FAILED = (OSError, asyncio.IncompleteReadError, CryptoError, ValueError, TimeoutError)


class TunnelFailed(Exception):
    """The other end cannot be reached, has left, or does not know the key."""


class Tunnel:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._out, self._in = (stream.crypto_secretstream_xchacha20poly1305_state() for _ in range(2))
        _watch_silence(writer)

    async def begin(self, send_key: bytes, receive_key: bytes) -> None:
        self._writer.write(stream.crypto_secretstream_xchacha20poly1305_init_push(self._out, send_key))
        head = await self._reader.readexactly(stream.crypto_secretstream_xchacha20poly1305_HEADERBYTES)
        stream.crypto_secretstream_xchacha20poly1305_init_pull(self._in, head, receive_key)

    def write(self, data: bytes) -> None:
        """At once; a connection that is lost shows when it is read."""
        sealed = stream.crypto_secretstream_xchacha20poly1305_push(self._out, data)
        self._writer.write(_LENGTH.pack(len(sealed)) + sealed)

    async def drain(self) -> None:
        try:
            await self._writer.drain()
        except OSError as error:
            raise TunnelFailed(f"the connection failed ({error})") from error

    async def read(self) -> bytes:
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > _MOST:
                raise ValueError("a message is too long")
            sealed = await self._reader.readexactly(length)
            return bytes(stream.crypto_secretstream_xchacha20poly1305_pull(self._in, sealed)[0])
        except _FAILED as error:
            raise TunnelFailed(f"the connection failed ({error})") from error

    def close(self) -> None:
        self._writer.close()


async def call(host: str, port: int, name: str, key: bytes) -> Tunnel:
    """Connect to the lighthouse of this torchft job."""
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host, port)
    except _FAILED as error:
        raise TunnelFailed(f"{host}:{port} cannot be reached ({error})") from error
    try:
        async with asyncio.timeout(CONNECT_S):
            mine, said = secrets.token_bytes(_RANDOM), name.encode()
            writer.write(_HELLO.pack(_MAGIC, len(said)) + said + mine)
            theirs = await reader.readexactly(_RANDOM)
            tunnel = Tunnel(reader, writer)
            await tunnel.begin(call_key(key, b"to", mine, theirs), call_key(key, b"from", mine, theirs))
            return tunnel
    except _FAILED as error:
        writer.close()
        raise TunnelFailed(f"{host}:{port} refused the connection ({error})") from error


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str, key: bytes) -> Tunnel:
    """The other end of `call`. That the caller knows the key shows with its first message."""
    try:
        async with asyncio.timeout(CONNECT_S):
            magic, length = _HELLO.unpack(await reader.readexactly(_HELLO.size))
            if magic != _MAGIC or length > 256 or await reader.readexactly(length) != name.encode():
                raise ValueError("the caller looks for another lighthouse")
            theirs, mine = await reader.readexactly(_RANDOM), secrets.token_bytes(_RANDOM)
            writer.write(mine)
            tunnel = Tunnel(reader, writer)
            await tunnel.begin(call_key(key, b"from", theirs, mine), call_key(key, b"to", theirs, mine))
            return tunnel
    except _FAILED as error:
        raise TunnelFailed(f"the caller was refused ({error})") from error


async def carry(tunnel: Tunnel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes both ways until either side ends; closes both."""

    async def outward() -> None:
        while data := await reader.read(_PIECE):
            tunnel.write(data)
            await tunnel.drain()

    async def inward() -> None:
        while True:
            writer.write(await tunnel.read())
            await writer.drain()

    ways = [asyncio.create_task(outward()), asyncio.create_task(inward())]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        tunnel.close()
        writer.close()


def _watch_silence(writer: asyncio.StreamWriter) -> None:
    """A host that lost its power sends no end of the connection."""
    sock = writer.get_extra_info("socket")
    if sock is None:
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_S * 1000)
