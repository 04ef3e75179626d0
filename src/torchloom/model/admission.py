"""Which hosts may join the cluster: tokens that admit them, and the keys of those that were admitted."""

from __future__ import annotations

from msgspec import Struct, field


class JoinToken(Struct, frozen=True, kw_only=True):
    """Admits a few hosts for a short time. Only a digest of its secret is known here."""

    id: str
    digest: str
    """SHA-256 of the secret."""
    by: str
    until_ns: int
    left: int
    """How many more hosts it admits."""
    node: str = ""
    """The only name it admits; empty: any."""


class AdmittedNode(Struct, frozen=True, kw_only=True):
    key: str
    """Public half of the key that its agent signs in with."""
    token: str
    at_ns: int


class Admissions(Struct, kw_only=True):
    """Kept by core.nodes.admission."""

    tokens: dict[str, JoinToken] = field(default_factory=dict)
    nodes: dict[str, AdmittedNode] = field(default_factory=dict)
    revoked: dict[str, int] = field(default_factory=dict)
    """Public key → when it was revoked, in seconds since 1970 by the clock of the stream."""


class JoinAnswer(Struct, frozen=True):
    """All that a host needs to be a node. Nothing of it is secret."""

    claims: str
    """Signed: what the host's key may do."""
    servers: tuple[str, ...]
    apis: tuple[str, ...]
    ca: str
