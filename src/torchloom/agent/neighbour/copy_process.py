"""Copies are sent and taken in a process of their own, which gives way to the training.

Encryption holds the interpreter's lock. A thread of the agent with a low priority would be preempted while it
holds the lock, and on a busy host the agent's event loop would wait for it (bench/copy_delay.py). The process
is started when it is first needed. It ends with the agent, however that ends: its standard input is a socket
of which the agent has the other end, and each order comes with a descriptor.

    send    what to send (sending.py), and where to say how that ended
    take    a connection on which another agent wants to put a state (door.py)

Owns both ends of that socket. Nothing is lost with the process: a copy that was under way is none, and the
next one starts it again.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from torchloom.agent.neighbour.channel import STALLED_S, Channel, ChannelState
from torchloom.agent.neighbour.door import Visit
from torchloom.agent.neighbour.sending import CopyResult, SendOrder, send_state
from torchloom.errors import LoomError

_NICE = 10
"""A tenth of a core that the training wants too. With less, a copy took minutes on a busy host."""
_AT_ONCE = 32
_LONGEST = 1 << 16


class TakeOrder(msgspec.Struct, frozen=True, tag="take"):
    """A connection that begins with this request."""

    folder: str
    state: ChannelState
    asked: dict[str, Any]


class _Send(msgspec.Struct, frozen=True, tag="send"):
    order: SendOrder


class CopyProcess:
    """The agent's end; used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket | None = None
        self._closed = False

    def send(self, order: SendOrder) -> CopyResult:
        """Send a state and wait for it."""
        mine, theirs = socket.socketpair()
        with mine:
            with theirs:
                if not self._hand(_Send(order), theirs):
                    return CopyResult("no process could be started for copies")
            try:
                return msgspec.json.decode(b"".join(iter(lambda: mine.recv(_LONGEST), b"")), type=CopyResult)
            except (OSError, msgspec.MsgspecError):
                return CopyResult("the process for copies has ended")

    def take(self, folder: Path, channel: Channel, asked: dict[str, Any]) -> bool:
        """Hand a connection over; False: it is still ours."""
        return self._hand(TakeOrder(str(folder), channel.state(), asked), channel.socket)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._end()

    def _hand(self, order: TakeOrder | _Send, sock: socket.socket) -> bool:
        message = msgspec.json.encode(order)
        with self._lock:
            for _ in range(2):  # it may have been killed since the last one
                with suppress(OSError):
                    if self._orders is None:
                        self._begin()
                    assert self._orders is not None
                    socket.send_fds(self._orders, [message], [sock.fileno()])
                    return True
                self._end()
        return False

    def _begin(self) -> None:
        """Raises OSError."""
        if self._closed:
            raise ConnectionError("the agent ends")
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-P", "-m", __name__]
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        self._orders = mine

    def _end(self) -> None:
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the agent decides when it ends
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)  # before any thread, which would keep the old one
    orders, room = socket.socket(fileno=0), threading.BoundedSemaphore(_AT_ONCE)
    while True:
        message, descriptors, _, _ = socket.recv_fds(orders, _LONGEST, 1)
        if not message:
            os._exit(0)
        with suppress(IndexError, msgspec.MsgspecError):
            sock = socket.socket(fileno=descriptors[0])
            order = msgspec.json.decode(message, type=TakeOrder | _Send)
            if not room.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(target=_serve, args=(order, sock, room.release), daemon=True).start()


def _serve(order: TakeOrder | _Send, sock: socket.socket, done: Callable[[], None]) -> None:
    try:
        with sock, suppress(LoomError, OSError):
            sock.settimeout(STALLED_S)
            match order:
                case _Send():
                    sock.sendall(msgspec.json.encode(send_state(order.order)))
                case TakeOrder():
                    channel = Channel.resume(sock, order.state)
                    Visit(Path(order.folder), channel, lambda: False).run(order.asked)
    finally:
        done()


if __name__ == "__main__":
    main()
