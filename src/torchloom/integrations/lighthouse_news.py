"""A worker's connection to its lighthouse, read in a thread of its own: deaths, and changes of settings.

Never part of a step: sending does not wait, and a connection that is lost is made again by that thread.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

_AGAIN_AFTER_S = 0.2


class LighthouseLink:
    """`heard` gets every message; `hello` returns what is sent first on every connection."""

    def __init__(
        self,
        address: str,
        heard: Callable[[Mapping[str, Any]], None],
        hello: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        self._address = address
        self._heard = heard
        self._hello = hello
        self._connection: socket.socket | None = None
        self._sending = threading.Lock()

    def start(self) -> None:
        threading.Thread(target=self._listen, name="loom-lighthouse", daemon=True).start()

    def send(self, message: Mapping[str, Any]) -> None:
        """At once or not at all: what did not leave as a whole is part of the next connection's `hello`."""
        data = json.dumps(message).encode() + b"\n"
        with self._sending:
            connection = self._connection
            if connection is None:
                return
            try:
                sent = connection.send(data, socket.MSG_DONTWAIT)
            except OSError:
                sent = 0
            if sent < len(data):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # the reader then connects again

    def _listen(self) -> None:
        host, _, port = self._address.rpartition(":")
        while True:
            try:
                with socket.create_connection((host, int(port))) as connection:
                    self._connection = connection
                    for message in self._hello():
                        self.send(message)
                    for line in connection.makefile("rb"):
                        self._heard(json.loads(line))
            except (OSError, ValueError, KeyError, TypeError):
                pass  # the lighthouse is being started again; until then torchft's own timeouts hold
            finally:
                self._connection = None
            time.sleep(_AGAIN_AFTER_S)
