"""When this host's nats-server is told to read its certificate again. The supervisor looks.

By what the server has and not by what was seen to change: files may have been replaced before the first look,
one after the other, or with an older date (`scp -p`). A certificate and a key that do not belong together are
waited out, because a server that is told to read them keeps the old ones and does not try again.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable
from pathlib import Path

from torchloom.bus.cluster_nats import ClusterNats
from torchloom.cli.cluster.host_files import ClusterHost


class CertificateWatch:
    def __init__(self, certificate: Path, key: Path, ca: Path) -> None:
        self._certificate, self._key, self._ca = certificate, key, ca
        self._read = ""
        """Digest of the files that the server has read; empty: not known."""
        self._confirmed = False
        """Whether the server was seen to use that certificate."""

    @classmethod
    def of(cls, host: ClusterHost) -> CertificateWatch:
        return cls(host.certificate, host.key, host.ca)

    def starts(self) -> None:
        """The server is about to be started, and reads what is there now."""
        self._read, self._confirmed = self._digest(), False

    def adopted(self) -> None:
        """Another process started the server, and nobody knows what it has read."""
        self._read, self._confirmed = "", False

    def due(self, used: Callable[[], bytes | None]) -> bool:
        """Whether to tell the server now. `used` is the certificate (DER) that it proves itself with; None if
        it does not answer."""
        found = self._digest()
        if not found or not self._belong_together():
            return False
        if found != self._read:
            return True
        if self._confirmed:
            return False
        now = used()
        self._confirmed = now == self._newest()
        return now is not None and not self._confirmed

    def look(self, server: ClusterNats) -> bool:
        """Tell the server if it is due; whether it was told. Whether it could read them is seen next time."""
        if not self.due(server.certificate):
            return False
        self.starts()
        if server.reload():
            return True
        self.adopted()
        return False

    def _digest(self) -> str:
        made = hashlib.sha256()
        try:
            for path in (self._certificate, self._key, self._ca):
                made.update(hashlib.sha256(path.read_bytes()).digest())
        except OSError:
            return ""  # being replaced just now
        return made.hexdigest()

    def _belong_together(self) -> bool:
        try:
            scratch = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            scratch.load_cert_chain(self._certificate, self._key)
            scratch.load_verify_locations(self._ca)
        except (OSError, ssl.SSLError):
            return False
        return True

    def _newest(self) -> bytes:
        end = "-----END CERTIFICATE-----"
        first = self._certificate.read_text().partition(end)[0]
        return ssl.PEM_cert_to_DER_cert(first[first.index("-----BEGIN") :] + end)
