"""Which hosts may join the cluster: tokens that admit them, and the keys of those that were admitted."""

from __future__ import annotations

from msgspec import Struct, field

POD = "pod "
"""Begins what is said of who made the token of a pod, for which Kubernetes vouches."""


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
    by: str = ""
    """Who made the token."""

    @property
    def pod(self) -> str:
        """Namespace and name of the pod that it is; empty: it is none."""
        return self.by.removeprefix(POD) if self.by.startswith(POD) else ""


class Admissions(Struct, kw_only=True):
    """Kept by core.nodes.admission."""

    tokens: dict[str, JoinToken] = field(default_factory=dict)
    nodes: dict[str, AdmittedNode] = field(default_factory=dict)
    revoked: dict[str, int] = field(default_factory=dict)
    """Public key → when it was revoked, in seconds since 1970 by the clock of the stream."""
    revoked_nodes: dict[str, int] = field(default_factory=dict)
    """Node → when it was revoked, until a person's token admits it again. A pod proves itself by its own
    token, as often as it likes, so its name has to be refused, too."""


class ProvenPod(Struct, frozen=True):
    """A pod that Kubernetes vouches for."""

    node: str
    """Its name as a node."""
    namespace: str
    pod: str


class JoinAnswer(Struct, frozen=True):
    """All that a host needs to be a node. Nothing of it is secret but a pod's token."""

    claims: str
    """Signed: what the host's key may do."""
    servers: tuple[str, ...]
    apis: tuple[str, ...]
    ca: str
    api_token: str = ""
    """For a pod, which submits its own job: a token of the API that ends when the node is revoked."""
