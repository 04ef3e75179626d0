"""A cluster whose keys follow from one shared secret, as the chart runs it: no file is made before the start.

LOOM_CLUSTER_SECRET_FILE names the secret, LOOM_NATS_URL and LOOM_NATS_CA the servers and what proves them,
LOOM_CLUSTER_API where agents reach the control service. Owns what a weaver and a server derive from these.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchloom.bus.address import BusAddress, BusTls
from torchloom.bus.cluster_accounts import (
    CLAIMS_OF_S,
    SYSTEM_INBOX,
    ClusterKeys,
    ServerPlace,
    derived_key,
    server_config,
)
from torchloom.bus.nats_config import WEAVER_INBOX
from torchloom.cli.service.shared_keys import read_secret
from torchloom.errors import UsageError

SECRET, API = "LOOM_CLUSTER_SECRET_FILE", "LOOM_CLUSTER_API"


@dataclass(frozen=True, slots=True)
class DerivedCluster:
    secret: bytes = field(repr=False)
    keys: ClusterKeys = field(repr=False)
    servers: tuple[str, ...]
    apis: tuple[str, ...]
    ca: Path

    @classmethod
    def of(cls, env: Mapping[str, str] = os.environ) -> DerivedCluster | None:
        """None if the environment names none."""
        named = env.get(SECRET, "")
        if not named:
            return None
        missing = [name for name in ("LOOM_NATS_URL", "LOOM_NATS_CA", API) if not env.get(name)]
        if missing:
            raise UsageError(f"{SECRET} is set and {', '.join(missing)} is not", hint="set all of them")
        secret = read_secret(Path(named))
        servers = BusAddress.from_url(env["LOOM_NATS_URL"]).servers
        return cls(secret, ClusterKeys.derived(secret), servers, (env[API],), Path(env["LOOM_NATS_CA"]))

    def weaver_bus(self) -> BusAddress:
        return self._bus(self.keys.weaver_claims(int(time.time())), WEAVER_INBOX)

    def system_bus(self) -> BusAddress:
        """For publishing which agents are revoked."""
        return self._bus(self.keys.system_claims(int(time.time())), SYSTEM_INBOX)

    def _bus(self, claims: str, inbox: str) -> BusAddress:
        tls = BusTls(str(self.ca))
        return BusAddress(self.servers, seed=self.keys.user, claims=claims, inbox_prefix=inbox, tls=tls)


def nats_config(
    secret: bytes, cluster: str, name: str, servers: Sequence[str], tls: Path, store: Path
) -> str:
    """The configuration of one NATS server of such a cluster. `servers`: host names of all of them."""
    password = derived_key(secret, "cluster routes").hex()
    place = ServerPlace(
        name,
        "0.0.0.0",
        4222,
        6222,
        str(store),
        str(tls / "tls.crt"),
        str(tls / "tls.key"),
        str(tls / "ca.crt"),
        route_password=password,
        monitor_port=8222,
        console=True,
    )
    routes = [f"nats-route://route:{password}@{server}:6222" for server in servers]
    return server_config(cluster, place, routes, ClusterKeys.derived(secret), CLAIMS_OF_S)
