"""Who is on the other end of a loopback TCP connection, as the kernel knows it.

A port on 127.0.0.1 belongs to whichever local user binds it first, so a port number proves nothing. The
kernel's table of sockets names the user that owns each end. Reads that table; opens no connection.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

_TABLES = (("/proc/self/net/tcp", 4), ("/proc/self/net/tcp6", 16))
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_ESTABLISHED, _LISTENING = "01", "0A"


@dataclass(frozen=True, slots=True)
class _Row:
    local: tuple[Address, int]
    remote: tuple[Address, int]
    state: str
    uid: int
    inode: int
    """0 while no process has accepted the connection: then its user is not known either."""


def owner_of_peer(connection: socket.socket) -> int | None:
    """The user that owns the other end of this connection to loopback; None if the kernel does not say.

    A connection that nobody has accepted yet still belongs to the listener, so the listener's user counts.
    """
    try:
        here, there = _address(connection.getsockname()), _address(connection.getpeername())
    except (OSError, ValueError):
        return None
    rows = _rows(there[1])
    for row in rows:
        if row.state == _ESTABLISHED and row.local == there and row.remote == here:
            return row.uid if row.inode else _only_owner(rows, there)
    return None


def listener_owner(host: str, port: int) -> int | None:
    """The user that listens on this address; None if nobody does, or several users do."""
    return _only_owner(_rows(port), (_plain(ipaddress.ip_address(host)), port))


def is_ours(connection: socket.socket) -> bool:
    """Whether the other end of a loopback connection is a process of this user."""
    return owner_of_peer(connection) == os.geteuid()


def _only_owner(rows: list[_Row], address: tuple[Address, int]) -> int | None:
    wanted, port = address
    owners = {
        row.uid
        for row in rows
        if row.state == _LISTENING and row.local[1] == port and _serves(row.local[0], wanted)
    }
    return owners.pop() if len(owners) == 1 else None


def _serves(
    bound: Address,
    wanted: Address,
) -> bool:
    return bound == wanted or bound.is_unspecified


def _address(name: tuple[object, ...]) -> tuple[Address, int]:
    host, port = str(name[0]).partition("%")[0], name[1]
    assert isinstance(port, int)
    return _plain(ipaddress.ip_address(host)), port


def _plain(
    address: Address,
) -> Address:
    """An IPv4 address that a dual-stack socket shows as `::ffff:…` is that IPv4 address."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _rows(port: int) -> list[_Row]:
    """Rows in which this port occurs: a busy host has tens of thousands of others."""
    mark = f":{port:04X} "
    found: list[_Row] = []
    for table, length in _TABLES:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in filter(lambda line: mark in line, lines):
            fields = line.split()
            try:
                local, remote = (_parse(field, length) for field in fields[1:3])
                found.append(_Row(local, remote, fields[3], int(fields[7]), int(fields[9])))
            except (ValueError, IndexError):
                continue
    return found


def _parse(text: str, length: int) -> tuple[Address, int]:
    """`0100007F:1F90`: the address as 32-bit words in the host's byte order, then the port."""
    address, _, port = text.partition(":")
    raw = bytes.fromhex(address)
    if len(raw) != length:
        raise ValueError("not an address of this table")
    words = b"".join(
        int.from_bytes(raw[at : at + 4], "big").to_bytes(4, sys.byteorder) for at in range(0, length, 4)
    )
    return _plain(ipaddress.ip_address(words)), int(port, 16)
