"""Signs for a cluster, with the keys that a control host has. Fulfils weaver.requests.admission.Issuer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from torchloom.bus.address import BusAddress
from torchloom.bus.cluster_accounts import CLAIMS_UPDATE, ClusterKeys, derived_key
from torchloom.cli.cluster.authority import fingerprint, pieces
from torchloom.errors import BusUnavailable, HomeUnusable

PUBLISH_WITHIN_S = 5.0


class SigningCluster(Protocol):
    """What a control host or the chart's control service knows of its cluster."""

    @property
    def keys(self) -> ClusterKeys: ...

    @property
    def servers(self) -> tuple[str, ...]: ...

    @property
    def apis(self) -> tuple[str, ...]: ...

    @property
    def ca(self) -> Path: ...

    def system_bus(self) -> BusAddress: ...


class ClusterIssuer:
    def __init__(self, cluster: SigningCluster) -> None:
        self._cluster = cluster
        self.servers, self.apis = cluster.servers, cluster.apis

    def authorities(self) -> str:
        try:
            return self._cluster.ca.read_text()
        except OSError as error:
            raise HomeUnusable(f"{self._cluster.ca} cannot be read ({error.strerror})") from error

    def fingerprint(self) -> str:
        return fingerprint(pieces(self.authorities())[0])

    def claims(self, node: str, key: str) -> str:
        return self._cluster.keys.agent_claims(node, key, int(time.time()))

    def api_token(self, node: str, key: str) -> str:
        shared = bytes.fromhex(self._cluster.keys.environments)
        return derived_key(shared, f"pod {node} {key}").hex()

    async def publish_revoked(self, revoked: dict[str, int]) -> None:
        from torchloom.bus.nats import NatsBus

        bus = await NatsBus.connect(self._cluster.system_bus(), name="claims", wait_s=PUBLISH_WITHIN_S)
        try:
            account = self._cluster.keys.agents_account(revoked, int(time.time()))
            answer = await bus.request(CLAIMS_UPDATE, account.encode(), PUBLISH_WITHIN_S)
        finally:
            await bus.close()
        if b'"code":200' not in answer.replace(b" ", b""):
            raise BusUnavailable("a server of the bus did not take the list of revoked hosts")
