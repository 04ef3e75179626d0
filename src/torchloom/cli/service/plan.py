"""The setup of a home's stack: address, token, bus. Stored so that a new supervisor uses the same.

Owns `parts/plan.json` and the token file. Secrets are in 0600 files only, never on a command line.
"""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from torchloom.bus.address import BusAddress, BusTls
from torchloom.cli.cluster.host_files import ClusterHost, bracketed
from torchloom.cli.cluster.node_files import JoinedNode
from torchloom.cli.service.parts import read_json, write_private
from torchloom.errors import UsageError
from torchloom.home import Home
from torchloom.model.ids import check_token, distinct_token, token_from

DEFAULT_PORT = 8700
HOST = "127.0.0.1"
_TEXTS = ("user", "password", "seed", "ca", "certificate", "key", "api_ca")


@dataclass(frozen=True)
class Plan:
    port: int
    """Port of the API."""
    servers: tuple[str, ...] = ()
    """External NATS servers; none means our own."""
    user: str = ""
    password: str = ""
    seed: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""
    """Files for a private connection to external servers."""
    host: str = HOST
    """Address of the API."""
    api_ca: str = ""
    """The API has TLS, and this file (PEM) proves it; empty: it is plain HTTP on loopback."""

    @classmethod
    def read(cls, home: Home) -> Plan | None:
        found = read_json(home.parts_dir / "plan.json")
        if "port" not in found:
            return None
        texts = {name: str(found.get(name, "")) for name in _TEXTS}
        host = str(found.get("host", HOST))
        return cls(int(found["port"]), tuple(found["servers"]), host=host, **texts)

    @classmethod
    def of_bus(cls, port: int, bus: BusAddress) -> Plan:
        tls = bus.tls or BusTls("")
        return cls(port, bus.servers, bus.user, bus.password, bus.seed, tls.ca, tls.certificate, tls.key)

    def bus(self) -> BusAddress:
        tls = BusTls(self.ca, self.certificate, self.key) if self.ca or self.certificate else None
        return BusAddress(self.servers, self.user, self.password, self.seed, tls=tls)

    def write(self, home: Home) -> None:
        write_private(home.parts_dir / "plan.json", asdict(self))

    @property
    def url(self) -> str:
        return f"{'https' if self.api_ca else 'http'}://{bracketed(self.host)}:{self.port}"


def external_bus() -> BusAddress | None:
    """The NATS server named in the environment, with credentials from there or from the URL."""
    url = os.environ.get("LOOM_NATS_URL", "")
    if not url:
        return None
    found = BusAddress.from_url(url)
    user = os.environ.get("LOOM_NATS_USER", found.user)
    password = os.environ.get("LOOM_NATS_PASSWORD", found.password)
    inbox = os.environ.get("LOOM_NATS_INBOX", "_INBOX")
    ca, certificate, key = (os.environ.get(f"LOOM_NATS_{name}", "") for name in ("CA", "CERT", "KEY"))
    tls = BusTls(ca, certificate, key) if ca or certificate or key else None
    return BusAddress(
        found.servers,
        user,
        password,
        _seed(),
        leader=os.environ.get("LOOM_NATS_LEADER", ""),
        inbox_prefix=inbox,
        tls=tls,
    )


def _seed() -> str:
    """The secret nkey in the file that LOOM_NATS_SEED_FILE names."""
    named = os.environ.get("LOOM_NATS_SEED_FILE", "")
    if not named:
        return ""
    try:
        return Path(named).expanduser().read_text().strip()
    except OSError as error:
        raise UsageError(f"LOOM_NATS_SEED_FILE cannot be read: {named} ({error.strerror})") from None


def bus_address(home: Home, role: Literal["weaver", "agent"], node: str) -> BusAddress:
    """Where a part of this home finds its bus: the environment's, the plan's, or our own server."""
    from torchloom.bus.embedded import EmbeddedNats
    from torchloom.cli.cluster.derived import DerivedCluster

    if role == "weaver" and (derived := DerivedCluster.of()) is not None:
        return derived.weaver_bus()
    named = external_bus()
    if named is not None:
        return named
    joined, cluster = JoinedNode.read(home), ClusterHost.read(home)
    if joined is not None:
        return joined.bus(home)
    if cluster is not None:
        return cluster.bus(role, node)
    plan = Plan.read(home)
    if plan is not None and plan.servers:
        return plan.bus()
    return EmbeddedNats(home.nats_dir, node).address(role)


def node_name() -> str:
    """Name of this host in the fleet: as it was chosen, or as it joined."""
    home = Home.default()
    joined, cluster = JoinedNode.read(home), ClusterHost.read(home)
    named = joined.node if joined is not None else cluster.this if cluster is not None else ""
    chosen = os.environ.get("LOOM_NODE") or named
    from_elsewhere = os.environ.get("LOOM_NODE_FROM", "")
    if not chosen and from_elsewhere:
        return distinct_token(from_elsewhere)
    return check_token(chosen, "node name") if chosen else token_from(socket.gethostname(), "node")


def node_address(home: Home) -> str:
    """At which other nodes reach this host; loopback on a host that stands alone."""
    joined, cluster = JoinedNode.read(home), ClusterHost.read(home)
    return joined.address if joined is not None else cluster.host.address if cluster is not None else HOST


def make_token(home: Home) -> str:
    """The token of this home, generated at the first start."""
    new = home.token_file.with_name(f".token.{os.getpid()}")
    shared = home.cluster_dir / "token"
    if not home.token_file.exists():
        descriptor = os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            common = shared.read_text().strip() if shared.exists() else ""
            file.write((os.environ.get("LOOM_TOKEN") or common or secrets.token_urlsafe(32)) + "\n")
        try:
            # link, not rename: of two concurrent starts, the first one's token stays.
            os.link(new, home.token_file)
        except FileExistsError:
            pass
        finally:
            new.unlink()
    return home.token_file.read_text().strip()
