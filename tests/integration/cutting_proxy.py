"""A TCP proxy that cuts connections at random places, as bad networks and impatient proxies do."""

from __future__ import annotations

import contextlib
import random
import socket
import threading


class CuttingProxy:
    """Forwards to a port of this host; each connection is cut after a random number of bytes downstream."""

    def __init__(self, target: int, seed: int, most_bytes: int) -> None:
        self._target = target
        self._random = random.Random(seed)
        self._most = most_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                allowance = self._random.randrange(200, self._most)
                threading.Thread(target=self._serve, args=(client, allowance), daemon=True).start()

    def _serve(self, client: socket.socket, allowance: int) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            threading.Thread(target=_copy, args=(client, server), daemon=True).start()
            with contextlib.suppress(OSError):
                while data := server.recv(4096):
                    client.sendall(data[:allowance])
                    allowance -= len(data)
                    if allowance <= 0:
                        self.cuts += 1
                        break
            for end in (client, server):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(4096):
            sink.sendall(data)
