"""Signs for a cluster, with the keys that a control host has. Fulfils weaver.requests.admission.Issuer."""

from __future__ import annotations

import time

from torchloom.bus.cluster_accounts import CLAIMS_UPDATE
from torchloom.cli.cluster.authority import fingerprint, pieces
from torchloom.cli.cluster.host_files import ClusterHost
from torchloom.errors import BusUnavailable, HomeUnusable

PUBLISH_WITHIN_S = 5.0


class ClusterIssuer:
    def __init__(self, cluster: ClusterHost) -> None:
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
