"""Who may do what on the bus of a cluster: the signed counterpart of `nats_config`.

    LOOM     the weavers, with all streams
    AGENTS   the agents of all hosts; each user may publish only for its node and read only its commands
    SYS      nobody but the weavers, who publish there which agents are revoked

Owns the cluster's keys, the claims made with them and the text of a server's `nats.conf`. Between accounts
the server puts a reply subject of its own in place of the sender's (`nats_config.accounts` says why that
matters). Inside AGENTS one agent can make the server deliver an acknowledgement to another agent's command
subject; that is no command, and the agent drops it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields

from torchloom.bus import nats_jwt
from torchloom.bus.keys import public_key
from torchloom.bus.nats_config import (
    BUFFERED_BYTES,
    BUFFERED_EVENTS,
    LEADER,
    LEASE_READ,
    LOG_BYTES,
    LOG_FILES,
    agent_permissions,
    check_node,
    weaver_permissions,
)
from torchloom.bus.protocol import MAX_MESSAGE_BYTES

CLAIMS_UPDATE = "$SYS.REQ.CLAIMS.UPDATE"
SYSTEM_INBOX = "_INBOX_SYS"
_EVENT, _LEASE = "loom.v1.event.node.*.report", "loom.v1.lease.*"
_HEARD = ("loom.v1.telemetry.*", "loom.v1.window.*")
_ASKED = ("loom.v1.command.*", "loom.v1.query.*")
ANSWER_WITHIN_S = 120.0
CLAIMS_OF_S = 1_790_000_000
"""The date of the accounts' claims where keys are derived from a secret: raise it when the claims change."""
AGENT_SUBSCRIPTIONS = 256


@dataclass(frozen=True, slots=True)
class ClusterKeys:
    """Everything secret of a cluster, as seeds. Whoever has them controls every host of it."""

    operator: str = field(repr=False)
    weavers: str = field(repr=False)
    agents: str = field(repr=False)
    system: str = field(repr=False)
    user: str = field(repr=False)
    """The weavers' own user."""
    environments: str = field(repr=False)
    """Jobs' environments are encrypted with keys derived from it, so that any weaver can start any job."""

    @classmethod
    def new(cls) -> ClusterKeys:
        return cls._made(lambda _: secrets.token_bytes(32))

    @classmethod
    def derived(cls, secret: bytes) -> ClusterKeys:
        """The same keys wherever the same secret is: servers and weavers need no other file in common."""
        return cls._made(lambda name: derived_key(secret, f"cluster {name}"))

    @classmethod
    def _made(cls, chance: Callable[[str], bytes]) -> ClusterKeys:
        """`chance`: 32 bytes for the key of this name."""
        import nkeys

        def seed(name: str, prefix: int) -> str:
            made: bytes = nkeys.encode_seed(chance(name), prefix)
            return made.decode()

        account = nkeys.PREFIX_BYTE_ACCOUNT
        return cls(
            operator=seed("operator", nkeys.PREFIX_BYTE_OPERATOR),
            weavers=seed("weavers", account),
            agents=seed("agents", account),
            system=seed("system", account),
            user=seed("user", nkeys.PREFIX_BYTE_USER),
            environments=chance("environments").hex(),
        )

    @classmethod
    def of(cls, found: dict[str, object]) -> ClusterKeys:
        """Raises KeyError for one that is missing."""
        return cls(**{one.name: str(found[one.name]) for one in fields(cls)})

    def stored(self) -> dict[str, str]:
        return asdict(self)

    # ---- claims ----

    def weaver_claims(self, at_s: int) -> str:
        may = weaver_permissions()
        return nats_jwt.user(
            self.weavers,
            public_key(self.user),
            "weaver",
            at_s,
            publish=_texts(may["publish"]),
            subscribe=_texts(may["subscribe"]),
        )

    def system_claims(self, at_s: int) -> str:
        key = public_key(self.user)
        inbox = [f"{SYSTEM_INBOX}.>"]
        return nats_jwt.user(
            self.system, key, "weaver of claims", at_s, publish=[CLAIMS_UPDATE], subscribe=inbox
        )

    def agent_claims(self, node: str, key: str, at_s: int) -> str:
        """What lets the holder of this key be the agent of that node, and nothing else."""
        may = agent_permissions(check_node(node))
        return nats_jwt.user(
            self.agents,
            key,
            node,
            at_s,
            publish=_texts(may["publish"]),
            subscribe=_texts(may["subscribe"]),
            answers=1,
            answer_within_s=ANSWER_WITHIN_S,
            payload=MAX_MESSAGE_BYTES,
            subscriptions=AGENT_SUBSCRIPTIONS,
        )

    def agents_account(self, revoked: dict[str, int], at_s: int) -> str:
        """Claims of the agents' account. `revoked`: users whose claims from before then are void."""
        weavers = public_key(self.weavers)
        return nats_jwt.account(
            self.operator,
            public_key(self.agents),
            "AGENTS",
            at_s,
            exports=[_export("stream", one) for one in _HEARD] + [_export("service", one) for one in _ASKED],
            imports=[_import("service", weavers, one) for one in (_EVENT, _LEASE)]
            + [_import("service", weavers, LEASE_READ, LEADER)],
            revoked=revoked,
        )

    def _weavers_account(self, at_s: int) -> str:
        agents = public_key(self.agents)
        return nats_jwt.account(
            self.operator,
            public_key(self.weavers),
            "LOOM",
            at_s,
            exports=[_export("service", one) for one in (_EVENT, _LEASE, LEASE_READ)],
            imports=[_import("stream", agents, one) for one in _HEARD]
            + [_import("service", agents, one) for one in _ASKED],
            stores=True,
        )

    def accounts(self, at_s: int) -> dict[str, str]:
        """Account → its claims as they are before anybody is revoked."""
        system = public_key(self.system)
        return {
            system: nats_jwt.account(self.operator, system, "SYS", at_s),
            public_key(self.weavers): self._weavers_account(at_s),
            public_key(self.agents): self.agents_account({}, at_s),
        }


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """One nats-server of a cluster."""

    name: str
    address: str
    port: int
    route_port: int
    directory: str
    """Where it keeps its store, its copy of the claims and its log."""
    certificate: str
    key: str
    ca: str
    route_password: str = field(default="", repr=False)
    """What servers prove themselves to each other with; empty: their certificates do."""
    monitor_port: int = 0
    """For health checks, without TLS; 0: none."""
    console: bool = False
    """Log to the standard error instead of a file."""


def server_config(cluster: str, place: ServerPlace, routes: list[str], keys: ClusterKeys, at_s: int) -> str:
    """The configuration file of one server. `at_s` is when the cluster was made: claims of that time never
    replace newer ones that a server has stored."""
    tls = {"cert_file": place.certificate, "key_file": place.key, "ca_file": place.ca}
    config: dict[str, object] = {
        "server_name": place.name,
        "host": place.address,
        "port": place.port,
        "max_payload": MAX_MESSAGE_BYTES,
        "tls": tls,
        "jetstream": {
            "store_dir": f"{place.directory}/jetstream",
            "sync_interval": "always",
            "max_buffered_msgs": BUFFERED_EVENTS,
            "max_buffered_size": BUFFERED_BYTES,
        },
        "operator": nats_jwt.operator(keys.operator, public_key(keys.system), at_s),
        "system_account": public_key(keys.system),
        "resolver": {"type": "full", "dir": f"{place.directory}/claims", "interval": "1m"},
        "resolver_preload": keys.accounts(at_s),
    }
    if not place.console:
        log = f"{place.directory}/nats.log"
        config |= {"log_file": log, "logfile_size_limit": LOG_BYTES, "logfile_max_num": LOG_FILES}
    if place.monitor_port:
        config["http_port"] = place.monitor_port
    if len(routes) > 1:
        config["cluster"] = {
            "name": cluster,
            "host": place.address,
            "port": place.route_port,
            "routes": routes,
            "tls": {**tls, "verify": not place.route_password},
            **_route_password(place.route_password),
        }
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def _route_password(password: str) -> dict[str, object]:
    if not password:
        return {}
    # Servers with addresses of their own, such as pods, are known by the names in `routes` alone.
    return {"authorization": {"user": "route", "password": password, "timeout": 5}, "no_advertise": True}


def derived_key(secret: bytes, what: str) -> bytes:
    """One of the keys that follow from a secret."""
    return hmac.digest(secret, f"torchloom {what}".encode(), hashlib.sha256)


def _export(kind: str, subject: str) -> dict[str, object]:
    return {"name": subject, "subject": subject, "type": kind}


def _import(kind: str, account: str, subject: str, local: str = "") -> dict[str, object]:
    found: dict[str, object] = {"name": subject, "subject": subject, "account": account, "type": kind}
    return {**found, "local_subject": local} if local else found


def _texts(value: object) -> list[str]:
    assert isinstance(value, list)
    return [str(one) for one in value]
