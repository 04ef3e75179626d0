"""What a joined host has in LOOM_HOME/cluster: its own key, what it may do with it, and whom it trusts.

Owns `node.json` (0600) and, beside it, `ca.pem`. The key is made on this host and never leaves it.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchloom.bus.address import BusAddress, BusTls
from torchloom.bus.nats_config import LEADER, agent_inbox
from torchloom.cli.service.parts import read_json, write_private
from torchloom.errors import HomeUnusable
from torchloom.home import Home, private_directory

VERSION = 1


@dataclass(frozen=True, slots=True)
class JoinedNode:
    node: str
    address: str
    """At which other nodes reach this host."""
    servers: tuple[str, ...]
    apis: tuple[str, ...]
    seed: str
    claims: str
    interface: str = ""
    """Network interface for collectives; empty: the one that the address is on."""
    api_token: str = ""
    """Of a pod: its own token of the API, to submit its job."""
    version: int = VERSION

    @classmethod
    def read(cls, home: Home) -> JoinedNode | None:
        """None if this host has not joined a cluster."""
        path = home.cluster_dir / "node.json"
        if not path.exists():
            return None
        found: dict[str, Any] = read_json(path)
        try:
            if found["version"] != VERSION:
                raise ValueError(f"version {found['version']!r}")
            texts = {name: str(found[name]) for name in ("node", "address", "seed", "claims", "interface")}
            servers, apis = (tuple(map(str, found[name])) for name in ("servers", "apis"))
            return cls(
                texts["node"],
                texts["address"],
                servers,
                apis,
                texts["seed"],
                texts["claims"],
                texts["interface"],
                str(found.get("api_token", "")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise HomeUnusable(
                f"{path} cannot be used ({type(error).__name__}: {error})", hint="join again with `loom join`"
            ) from None

    def write(self, home: Home, ca: str) -> None:
        private_directory(home.cluster_dir)
        replace_ca(home, ca)
        write_private(home.cluster_dir / "node.json", asdict(self))

    def bus(self, home: Home) -> BusAddress:
        return BusAddress(
            self.servers,
            seed=self.seed,
            claims=self.claims,
            inbox_prefix=agent_inbox(self.node),
            leader=LEADER,
            tls=BusTls(str(ca_file(home))),
        )


def ca_file(home: Home) -> Path:
    return home.cluster_dir / "ca.pem"


def replace_ca(home: Home, text: str) -> None:
    """Trust these authorities from the next connection on."""
    new = ca_file(home).with_name(f".ca.pem.{os.getpid()}")
    new.write_text(text)
    new.replace(ca_file(home))
