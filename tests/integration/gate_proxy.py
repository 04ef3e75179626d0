"""A TCP proxy that can be shut: connections are cut, or nothing comes through any more and nobody is told."""

from __future__ import annotations

import contextlib
import socket
import threading


class GateProxy:
    """Forwards to a port of this host while it is open."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open = threading.Event()
        self._open.set()
        self._cut = False
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self, silently: bool) -> None:
        """`silently`: as a switch that drops packets; else as a host that resets connections."""
        self._open.clear()
        self._cut = not silently
        if not silently:
            self._close_all()

    def open(self) -> None:
        """What was held up while it was silently shut comes through now, late."""
        self._cut = False
        self._open.set()

    def close(self) -> None:
        self._listener.close()
        self._open.set()
        self._close_all()

    def _close_all(self) -> None:
        ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._cut:
                    client.close()
                    continue
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._open.wait()
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            self._ends += [client, server]
            back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
            back.start()
            self._copy(client, server)
            back.join()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
