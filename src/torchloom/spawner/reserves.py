"""Children forked ahead of need: a restart then costs no fork. A reserve waits to be told what it is to be.

It has its own session, and nothing of the spawner's but one end of a socket. It becomes a worker when it is
given an order and the two log files, as one that has just been forked does; the reserve for a store listens
already. A reserve ends when its spawner ends or drops it: it belongs to no job and no one else knows it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from torchloom.spawner import child
from torchloom.spawner.warm import Warmth

_LENGTH = struct.Struct("<Q")
_GIVEN_WITHIN_S = 1.0
"""A reserve that does not take its order in this time is stopped or worse: it is ended, another is forked."""


@dataclass(eq=False)
class Reserve:
    """One that waits. `socket` is the spawner's end."""

    pid: int
    start_ticks: int
    socket: socket.socket
    host: str = ""
    port: int = 0
    """Where it listens, if it is a store."""

    def become(self, spec: Mapping[str, Any], descriptors: Sequence[int]) -> bool:
        """Give it its order. False: it cannot take it; then it has run nothing, and is ended."""
        text = json.dumps(spec).encode()
        try:
            self.socket.settimeout(_GIVEN_WITHIN_S)
            if descriptors:
                socket.send_fds(self.socket, [_LENGTH.pack(len(text))], list(descriptors))
            else:
                self.socket.sendall(_LENGTH.pack(len(text)))
            self.socket.sendall(text)
            os.kill(self.pid, signal.SIGCONT)  # somebody may have stopped it
        except OSError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(
                    self.pid, signal.SIGKILL
                )  # our child, which nobody has waited for: it is still itself
            return False
        finally:
            self.socket.close()
        return True


class Reserves:
    """Those of one spawner."""

    def __init__(self) -> None:
        self.workers: list[Reserve] = []
        self.store: Reserve | None = None

    def take_worker(self) -> Reserve | None:
        return self.workers.pop() if self.workers else None

    def take_store(self, host: str) -> Reserve | None:
        """The store that listens there; it is in use from now on."""
        found = self.store
        if found is None or found.host != host:
            return None
        self.store = None
        return found if found.become({}, ()) else None

    def drop(self, workers: int, host: str | None) -> None:
        """Keep at most so many workers, and a store only if it listens on `host`."""
        while len(self.workers) > workers:
            self.workers.pop().socket.close()
        if self.store is not None and self.store.host != host:
            self.store.socket.close()
            self.store = None

    def ended(self, pid: int) -> None:
        """A child that is no worker and no store has ended: perhaps one of these, which somebody killed."""
        for reserve in [one for one in self.workers if one.pid == pid]:
            self.workers.remove(reserve)
            reserve.socket.close()
        if self.store is not None and self.store.pid == pid:
            self.store.socket.close()
            self.store = None


def wait_to_become(connection: socket.socket, warmth: Warmth) -> NoReturn:
    """In a reserve worker, with the spawner's frames left: wait, and be what is asked for."""
    child.leave_spawner((connection.fileno(),), for_exec=False)
    spec, descriptors = receive(connection)
    os.close(connection.detach())
    if spec is None or len(descriptors) != 2:
        os._exit(0)
    child.adopt_stdio(*descriptors)
    child.run(spec, warmth)


def receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The order and the descriptors that came with it; None if the spawner has ended or needs no reserve."""
    try:
        head, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, 2)
        while head and len(head) < _LENGTH.size:
            head += connection.recv(_LENGTH.size - len(head))
        wanted, text = (_LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0), b""
        while len(text) < wanted:
            more = connection.recv(wanted - len(text))
            if not more:
                return None, []
            text += more
    except OSError:
        return None, []
    return (json.loads(text) if text else None), list(descriptors)
