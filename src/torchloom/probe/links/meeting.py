"""One pair of ranks measures each other: the conversation on one connection, every move with a deadline.

Who sends says how many bytes come (8 bytes of length), sends them, and times how long it takes until the
other side has said that it has them all; so only one clock is used. Small messages give the delay, larger
ones the time for a megabyte; how many and how large depends on the time there is. Opens nothing itself.
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass

from torchloom.probe.steering.stopping import is_ours

LARGE = 1 << 20
LADDER = (64 << 10, 256 << 10, LARGE, LARGE, LARGE, LARGE)
"""Sizes to send one after the other, as long as the next one may be expected to arrive in time."""
PINGS = 12
"""More than the ten segments that Linux sends on a new connection without regard to its pace."""
_LENGTH = struct.Struct("!Q")
_OVER = (1 << 64) - 1
_BYTES = bytes(LARGE)
_ACK = b"+"


@dataclass(slots=True)
class Measured:
    """What one rank found out about sending to another."""

    delay_ns: int
    """One way, of a small message: half of the shortest round trip."""
    transfer_ns: int
    """For a megabyte. Of one that did not arrive in time: how long it takes at least."""


def send_to(connection: socket.socket, until_ns: int) -> Measured:
    """Measure sending to the other side, which runs `receive_from`."""
    began_ns = time.monotonic_ns()
    trips = []
    for _ in range(PINGS):
        trips.append(_timed(connection, 1, until_ns))
        if time.monotonic_ns() - began_ns > (until_ns - began_ns) // 4:
            break
    best_ns, best_size = 0, 0
    for size in LADDER:
        sent_ns = time.monotonic_ns()
        if best_ns * size // LARGE > (until_ns - sent_ns) // 2:
            break
        try:
            took_ns = _timed(connection, size, until_ns)
        except OSError as error:
            if not is_ours(error):
                raise
            # It did not arrive in time, so the connection is useless now; but this much is known.
            best_ns = max(best_ns, _a_megabyte(time.monotonic_ns() - sent_ns, size))
            return Measured(min(trips) // 2, best_ns)
        a_megabyte_ns = _a_megabyte(took_ns, size)
        # Short ones say too little about a megabyte: only the largest that arrived count.
        best_ns = a_megabyte_ns if size > best_size else min(best_ns, a_megabyte_ns)
        best_size = size
    _send(connection, _LENGTH.pack(_OVER), until_ns)
    return Measured(min(trips) // 2, best_ns)


def receive_from(connection: socket.socket, until_ns: int) -> None:
    """Take what the other side sends, until it says that this is all."""
    into = memoryview(bytearray(LARGE))
    while True:
        (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size, until_ns))
        if length == _OVER:
            return
        if length > LARGE:
            raise ConnectionError("the peer announced more bytes than a rank sends")
        _receive_into(connection, into[:length], until_ns)
        _send(connection, _ACK, until_ns)


def _timed(connection: socket.socket, size: int, until_ns: int) -> int:
    began_ns = time.monotonic_ns()
    _send(connection, _LENGTH.pack(size) + _BYTES[:size], until_ns)
    _receive(connection, 1, until_ns)
    return max(1, time.monotonic_ns() - began_ns)


def _a_megabyte(took_ns: int, size: int) -> int:
    return took_ns * LARGE // size


def _send(connection: socket.socket, data: bytes, until_ns: int) -> None:
    connection.settimeout(left_s(until_ns))
    connection.sendall(data)


def _receive(connection: socket.socket, count: int, until_ns: int) -> bytes:
    found = bytearray(count)
    _receive_into(connection, memoryview(found), until_ns)
    return bytes(found)


def _receive_into(connection: socket.socket, into: memoryview, until_ns: int) -> None:
    got = 0
    while got < len(into):
        connection.settimeout(left_s(until_ns))
        count = connection.recv_into(into[got:])
        if not count:
            raise ConnectionError("the other side has gone")
        got += count


def receive_exactly(connection: socket.socket, count: int, until_ns: int) -> bytes:
    return _receive(connection, count, until_ns)


def left_s(until_ns: int) -> float:
    """Time that is left, for a call that wants seconds. A time limit of 0 would mean none at all."""
    left = (until_ns - time.monotonic_ns()) / 1e9
    if left <= 0:
        raise TimeoutError("the time for measuring is over")
    return left
