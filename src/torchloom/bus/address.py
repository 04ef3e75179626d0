"""Where a bus is and who we are on it, with the secret kept out of everything that can be printed.

Owns the split of a URL into servers and credentials, and what makes a connection private. Does not connect.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from torchloom.errors import UsageError

DEFAULT_PORT = 4222
SCHEMES = ("nats", "tls")


@dataclass(frozen=True, slots=True)
class BusTls:
    """Files (PEM) for a private connection. They are read at every connection, so they may be renewed."""

    ca: str
    """Whose signature proves a server; empty: the system's authorities."""
    certificate: str = ""
    key: str = ""
    """What proves us, where servers ask for it."""

    def context(self) -> ssl.SSLContext:
        """Raises UsageError if a file cannot be used."""
        if bool(self.certificate) != bool(self.key):
            raise UsageError("LOOM_NATS_CERT and LOOM_NATS_KEY belong together", hint="give both or none")
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            named = ", ".join(filter(None, (self.ca, self.certificate, self.key)))
            why = error.strerror if isinstance(error, FileNotFoundError) else str(error)
            raise UsageError(
                f"the TLS files of the bus cannot be used: {named} ({why})",
                hint="correct LOOM_NATS_CA, LOOM_NATS_CERT and LOOM_NATS_KEY",
            ) from None
        return context


@dataclass(frozen=True, slots=True)
class BusAddress:
    """One NATS account as one role sees it. Its repr and its `servers` hold no secret."""

    servers: tuple[str, ...]
    """`nats://host:port` or `tls://host:port`, without credentials; several for a cluster."""
    user: str = ""
    password: str = field(default="", repr=False)
    seed: str = field(default="", repr=False)
    """Seed of the nkey that we sign the server's nonce with. The server knows only its public half."""
    claims: str = field(default="", repr=False)
    """What the key's holder may do, signed by the cluster (`nats_jwt`); empty: the server's own file says."""
    owner: int | None = None
    """The user that must own the server's end of each connection, for our own server on loopback."""
    leader: str = ""
    """Subject on which this client asks who leads, if it is in another account than the lease."""
    inbox_prefix: str = "_INBOX"
    """Where answers to this client go. Each agent has its own, which no other client may read."""
    tls: BusTls | None = None
    """None: only as private as the server asks for, by the system's authorities."""

    @classmethod
    def from_url(cls, url: str, *, inbox_prefix: str = "_INBOX") -> BusAddress:
        """Take `nats://user:password@host:port[,host:port…]` apart. Only the first may carry credentials."""
        servers: list[str] = []
        user = password = ""
        for part in filter(None, (piece.strip() for piece in url.split(","))):
            split = urlsplit(part if "://" in part else f"nats://{part}")
            try:
                port = split.port or DEFAULT_PORT
            except ValueError:
                port = 0
            if split.scheme not in SCHEMES or not split.hostname or not port:
                # The URL itself is not repeated: it may hold a password.
                raise UsageError(
                    "the NATS address is not of the form nats://host:port",
                    hint="correct --nats or LOOM_NATS_URL",
                )
            host = f"[{split.hostname}]" if ":" in split.hostname else split.hostname
            servers.append(f"{split.scheme}://{host}:{port}")
            user = user or unquote(split.username or "")
            password = password or unquote(split.password or "")
        if not servers:
            raise UsageError("the NATS address is empty", hint="give --nats nats://host:port")
        return cls(tuple(servers), user, password, inbox_prefix=inbox_prefix)

    def __str__(self) -> str:
        return ", ".join(self.servers)
