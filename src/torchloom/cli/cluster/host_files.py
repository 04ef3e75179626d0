"""What a control host of a cluster has in LOOM_HOME/cluster: who the hosts are, and this one's keys.

Owns `cluster.json` (0600). `ca.pem`, `host.pem` and `host.key` beside it may be replaced while all runs.
Starts nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from torchloom.bus.address import BusAddress, BusTls
from torchloom.bus.cluster_accounts import SYSTEM_INBOX, ClusterKeys, ServerPlace, server_config
from torchloom.bus.keys import new_seed, public_key
from torchloom.bus.nats_config import LEADER, WEAVER_INBOX, agent_inbox
from torchloom.cli.service.parts import read_json, write_private
from torchloom.errors import HomeUnusable
from torchloom.home import Home

VERSION = 1
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class ControlHost:
    """One host that runs a nats-server and a weaver."""

    name: str
    address: str
    nats_port: int = 4222
    route_port: int = 6222
    api_port: int = 8700

    @property
    def server(self) -> str:
        return f"tls://{bracketed(self.address)}:{self.nats_port}"

    @property
    def api(self) -> str:
        return f"https://{bracketed(self.address)}:{self.api_port}"

    @property
    def route(self) -> str:
        return f"nats-route://{bracketed(self.address)}:{self.route_port}"

    @property
    def names(self) -> list[str]:
        """By which others, and programs on the host itself, may call it."""
        return list(dict.fromkeys((self.address, self.name, *LOOPBACK_NAMES)))


@dataclass(frozen=True, slots=True)
class ClusterHost:
    """The cluster as one of its control hosts knows it."""

    directory: Path
    name: str
    made_s: int
    this: str
    hosts: tuple[ControlHost, ...]
    agents: bool
    """Whether control hosts run workers, too."""
    keys: ClusterKeys

    @classmethod
    def read(cls, home: Home) -> ClusterHost | None:
        """None if this home is no control host."""
        return cls.read_directory(home.cluster_dir)

    @classmethod
    def read_directory(cls, directory: Path) -> ClusterHost | None:
        path = directory / "cluster.json"
        if not path.exists():
            return None
        found: dict[str, Any] = read_json(path)
        try:
            if found["version"] != VERSION:
                raise ValueError(f"version {found['version']!r}")
            hosts = tuple(ControlHost(**one) for one in found["hosts"])
            made = cls(
                directory,
                str(found["name"]),
                int(found["made_s"]),
                str(found["this"]),
                hosts,
                bool(found["agents"]),
                ClusterKeys.of(found["keys"]),
            )
            made.host  # noqa: B018 - one of the hosts must be this one
        except (KeyError, TypeError, ValueError, StopIteration) as error:
            raise HomeUnusable(
                f"{path} cannot be used ({type(error).__name__}: {error})",
                hint="copy it again from where `loom cluster init` ran",
            ) from None
        return made

    def write(self) -> None:
        value = {
            "version": VERSION,
            "name": self.name,
            "made_s": self.made_s,
            "this": self.this,
            "hosts": [asdict(one) for one in self.hosts],
            "agents": self.agents,
            "keys": self.keys.stored(),
        }
        write_private(self.directory / "cluster.json", value)

    @property
    def host(self) -> ControlHost:
        return next(one for one in self.hosts if one.name == self.this)

    @property
    def copies(self) -> int:
        """As many as survive the loss of as many hosts as possible."""
        return max(n for n in (1, 3, 5) if n <= len(self.hosts))

    @property
    def ca(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def certificate(self) -> Path:
        return self.directory / "host.pem"

    @property
    def key(self) -> Path:
        return self.directory / "host.key"

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name.lower() for name in self.host.names)

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(one.server for one in self.hosts)

    @property
    def apis(self) -> tuple[str, ...]:
        return tuple(one.api for one in self.hosts)

    def config(self, nats_dir: Path) -> str:
        """This host's `nats.conf`."""
        place = ServerPlace(
            self.this,
            self.host.address,
            self.host.nats_port,
            self.host.route_port,
            str(nats_dir),
            str(self.certificate),
            str(self.key),
            str(self.ca),
        )
        routes = [one.route for one in self.hosts]
        return server_config(self.name, place, routes, self.keys, self.made_s)

    def bus(self, role: Literal["weaver", "agent"], node: str) -> BusAddress:
        now_s = int(time.time())
        if role == "weaver":
            claims = self.keys.weaver_claims(now_s)
            return self._bus(self.keys.user, claims, WEAVER_INBOX)
        seed = new_seed()  # a new one at every start: this host may sign for itself
        claims = self.keys.agent_claims(node, public_key(seed), now_s)
        return self._bus(seed, claims, agent_inbox(node), LEADER)

    def system_bus(self) -> BusAddress:
        """For publishing which agents are revoked."""
        return self._bus(self.keys.user, self.keys.system_claims(int(time.time())), SYSTEM_INBOX)

    def _bus(self, seed: str, claims: str, inbox: str, leader: str = "") -> BusAddress:
        # Our own server first: it needs no network.
        servers = sorted(self.servers, key=lambda one: one != self.host.server)
        tls = BusTls(str(self.ca))
        return BusAddress(
            tuple(servers), seed=seed, claims=claims, inbox_prefix=inbox, leader=leader, tls=tls
        )

    def environment_key(self, name: str) -> bytes:
        """The key of one submission's environment."""
        return hmac.digest(bytes.fromhex(self.keys.environments), name.encode(), hashlib.sha256)


def bracketed(address: str) -> str:
    """An address as it stands in a URL."""
    try:
        return f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
    except ValueError:
        return address
