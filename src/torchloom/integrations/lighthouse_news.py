"""Listens to a lighthouse in a thread of its own: which replicas have ended. Never part of a step."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable

_AGAIN_AFTER_S = 0.2


def listen(address: str, died: Callable[[int, list[str]], None]) -> None:
    """Call `died` with the newest quorum and the replica ids of each death, until this process ends."""
    thread = threading.Thread(target=_listen, args=(address, died), name="loom-lighthouse", daemon=True)
    thread.start()


def _listen(address: str, died: Callable[[int, list[str]], None]) -> None:
    host, _, port = address.rpartition(":")
    while True:
        try:
            with socket.create_connection((host, int(port))) as connection:
                for line in connection.makefile("rb"):
                    news = json.loads(line)
                    died(int(news["quorum"]), [str(id) for id in news["gone"]])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # the lighthouse is being started again; until then torchft's own timeouts hold
        time.sleep(_AGAIN_AFTER_S)
