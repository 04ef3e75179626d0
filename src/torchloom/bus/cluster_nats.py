"""This host's nats-server of a cluster. As the embedded one, but its configuration is given, and it listens
beyond loopback, with TLS.

Owns the directory as `EmbeddedNats` does; `identity.json` is not used. Renewed certificates are read when the
server is told to (`reload`); connections that exist are not touched by that.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from torchloom.bus.address import BusAddress
from torchloom.bus.embedded import EmbeddedNats, Role, ServerIdentity
from torchloom.home import private_directory

ANSWER_WITHIN_S = 3.0


class ClusterNats(EmbeddedNats):
    def __init__(
        self,
        directory: Path,
        name: str,
        host: str,
        port: int,
        config: Callable[[], str],
        address: Callable[[Role], BusAddress],
    ) -> None:
        super().__init__(directory, name)
        self.host = host
        self._known = ServerIdentity(name, port, {})
        self._config = config
        self._address = address

    def address(self, role: Role) -> BusAddress:
        return self._address(role)

    def prepare(self) -> None:
        for path in (self.directory, self.directory / "jetstream", self.directory / "claims"):
            private_directory(path)
        self._write_private(self.config_file, self._config())

    def reload(self) -> bool:
        """Let the running server read its configuration and certificates again; False if none runs."""
        pid = self.pid()
        if pid is not None:
            os.kill(pid, signal.SIGHUP)
        return pid is not None

    def certificate(self) -> bytes | None:
        """What the running server proves itself with now (DER); None if it does not answer."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with socket.create_connection((self.host, self.port), timeout=ANSWER_WITHIN_S) as plain:
                greeting = b""
                while not greeting.endswith(b"\n") and (more := plain.recv(1)):
                    greeting += more
                with context.wrap_socket(plain) as proven:
                    return proven.getpeercert(binary_form=True)
        except OSError:
            return None

    def _identity(self) -> ServerIdentity:
        return self._known
