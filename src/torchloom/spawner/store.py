"""The store keeper: a process that does nothing but host one generation's c10d store.

The spawner binds and listens before it publishes the port, so no client is ever refused and no port is
raced for; the keeper inherits that socket. It ends by SIGTERM or SIGKILL, or by itself when its spawner is
gone and no client is left. It is a forked child of a warm spawner, or a new interpreter under a cold one.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

COMM = "loom-store"
_PR_SET_NAME = 15
_LOOK_EVERY_S = 2.0
_LOOKS_BEFORE_FIRST_CLIENT = 300
"""An orphan whose clients have yet to come: workers that start cold import torch before they connect."""
_LOOKS_AFTER_LAST_CLIENT = 3


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(4096)
    except OSError:
        listener.close()
        raise
    return listener


def keep(
    descriptor: int,
    host: str,
    port: int,
    spawner: int,
    wanted: Callable[[], tuple[object, object]] | None = None,
) -> NoReturn:
    """Host the store on an inherited listening socket until killed. Never returns, runs no atexit handler.

    `spawner` is the pid of the process that forked it, which may be gone by now. A reserve waits with
    `wanted` until it is in use, and ends if it never is (reserves.py).
    """
    status = 1
    try:
        if wanted is None:
            _take_name()
        from torch.distributed import TCPStore

        # Held until the end: the server lives as long as this object.
        store = TCPStore(
            host_name=_reachable(host),
            port=port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=descriptor,
        )
        if wanted is not None:
            if wanted()[0] is None:
                os._exit(0)
            _take_name()
        wait_until_useless(store, spawner, port)
        status = 0
    except BaseException as error:  # noqa: BLE001  # top of a process: say it in the spawner's log, then end
        print(f"spawner: the store on port {port} failed: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def _take_name() -> None:
    """The name by which it is found should its spawner die."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, COMM.encode(), 0, 0, 0)


def _reachable(host: str) -> str:
    """The keeper is a client of its own server, and a wildcard is not an address to connect to."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


def wait_until_useless(store: Any, spawner: int, port: int) -> None:
    """An orphaned keeper serves while workers are connected, and ends once they are gone. It writes no key
    itself: any key is a client's, also of one that came and went before the first look."""
    own_connection = 1
    unused, patience = 0, _LOOKS_BEFORE_FIRST_CLIENT
    while unused < patience:
        time.sleep(_LOOK_EVERY_S)
        if store.num_keys() > 0:
            patience = _LOOKS_AFTER_LAST_CLIENT
        alone = os.getppid() != spawner and connections(port) <= own_connection
        unused = unused + 1 if alone else 0


def connections(port: int) -> int:
    """Established connections to a local port."""
    found = 0
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            found += fields[3] == "01" and int(fields[1].rpartition(":")[2], 16) == port
    return found


def find_keepers(socket_path: Path | str) -> list[int]:
    """Store keepers of the spawner at this socket, also when that spawner is dead: for sweeping up."""
    wanted = os.fsencode(socket_path)
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            if (process / "comm").read_text().strip() != COMM:
                continue
            if wanted in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def main() -> NoReturn:
    """`python -m torchloom.spawner.store FD HOST PORT SPAWNER SOCKET` (the last only to be found by)."""
    keep(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))


if __name__ == "__main__":
    main()
