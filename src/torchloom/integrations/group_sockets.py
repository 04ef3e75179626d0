"""Which sockets of this process belong to a process group, and how to shut down exactly those."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable


def sockets() -> dict[int, int]:
    """Inode by descriptor of every socket of this process."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found[int(name)] = int(target[8:-1])
    return found


def listening_ports(known: Iterable[int]) -> frozenset[int]:
    ports = set()
    for fd in known:
        one = _duplicate(fd)
        if one is not None:
            with one:
                try:
                    if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        ports.add(one.getsockname()[1])
                except (OSError, IndexError):
                    continue  # not an internet socket
    return frozenset(ports)


def is_peer(fd: int, servers: frozenset[int]) -> bool:
    """Connected over TCP, and not accepted by one of these servers of ours."""
    one = _duplicate(fd)
    if one is None:
        return False
    with one:
        try:
            one.getpeername()
            tcp = one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM
            return tcp and one.getsockname()[1] not in servers
        except OSError:
            return False


def shut(fd: int, inode: int) -> None:
    """Shut down this very socket; the number may be another file's by now."""
    one = _duplicate(fd)
    if one is None:
        return
    with one:
        try:
            if os.fstat(one.fileno()).st_ino == inode:
                one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already, which is as good


def _duplicate(fd: int) -> socket.socket | None:
    try:
        return socket.socket(fileno=os.dup(fd))
    except OSError:
        return None
