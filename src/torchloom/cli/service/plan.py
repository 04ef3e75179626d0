"""The setup of a home's stack: address, token, bus. Stored so that a new supervisor uses the same.

Owns `parts/plan.json` and the token file. Secrets are in 0600 files only, never on a command line.
"""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import asdict, dataclass
from typing import Literal

from torchloom.bus.address import BusAddress
from torchloom.cli.service.parts import read_json, write_private
from torchloom.home import Home
from torchloom.model.ids import check_token, token_from

DEFAULT_PORT = 8700
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Plan:
    port: int
    """Port of the API."""
    servers: tuple[str, ...] = ()
    """External NATS servers; none means our own."""
    user: str = ""
    password: str = ""

    @classmethod
    def read(cls, home: Home) -> Plan | None:
        found = read_json(home.parts_dir / "plan.json")
        if "port" not in found:
            return None
        return cls(int(found["port"]), tuple(found["servers"]), found["user"], found["password"])

    def write(self, home: Home) -> None:
        write_private(home.parts_dir / "plan.json", asdict(self))

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


def external_bus() -> BusAddress | None:
    """The NATS server named in the environment, with credentials from there or from the URL."""
    url = os.environ.get("LOOM_NATS_URL", "")
    if not url:
        return None
    found = BusAddress.from_url(url)
    user = os.environ.get("LOOM_NATS_USER", found.user)
    password = os.environ.get("LOOM_NATS_PASSWORD", found.password)
    inbox = os.environ.get("LOOM_NATS_INBOX", "_INBOX")
    return BusAddress(found.servers, user, password, inbox_prefix=inbox)


def bus_address(home: Home, role: Literal["weaver", "agent"], node: str) -> BusAddress:
    """Where a part of this home finds its bus: the environment's, the plan's, or our own server."""
    from torchloom.bus.embedded import EmbeddedNats

    named = external_bus()
    if named is not None:
        return named
    plan = Plan.read(home)
    if plan is not None and plan.servers:
        return BusAddress(plan.servers, plan.user, plan.password)
    return EmbeddedNats(home.nats_dir, node).address(role)


def node_name() -> str:
    """Name of this host in the fleet."""
    chosen = os.environ.get("LOOM_NODE")
    return check_token(chosen, "node name") if chosen else token_from(socket.gethostname(), "node")


def make_token(home: Home) -> str:
    """The token of this home, generated at the first start."""
    new = home.token_file.with_name(f".token.{os.getpid()}")
    if not home.token_file.exists():
        descriptor = os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write((os.environ.get("LOOM_TOKEN") or secrets.token_urlsafe(32)) + "\n")
        try:
            # link, not rename: of two concurrent starts, the first one's token stays.
            os.link(new, home.token_file)
        except FileExistsError:
            pass
        finally:
            new.unlink()
    return home.token_file.read_text().strip()
