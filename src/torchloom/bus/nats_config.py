"""The embedded server's configuration: who may do what on the bus.

Owns the text of `nats.conf`, the rights of the two roles, and the names and version both sides agree on.
Writes nothing, starts nothing, and does not import nats-py.

    weaver   everything of torchloom, and JetStream
    agent    events and telemetry of its own node, commands and queries for it, answers to those, and to
             read who leads; an account of its own without streams, objects or other nodes
"""

from __future__ import annotations

import json
import re

from torchloom.bus.protocol import MAX_MESSAGE_BYTES
from torchloom.errors import UsageError

MIN_SERVER_VERSION = (2, 10, 0)
"""The first whose stream information carries the server's own time, on which leases rest."""
MIN_OWN_VERSION = (2, 11, 0)
"""The first that knows all settings of the file that is written here."""

EVENT_STREAM = "LOOM_EVENTS"
LEASE_BUCKET = "LOOM_LEASE"
OBJECT_BUCKET = "LOOM_OBJECTS"

LEASE_READ = f"$JS.API.STREAM.MSG.GET.KV_{LEASE_BUCKET}"
"""All that an agent may ask of JetStream: who leads, and with which epoch. Its own account calls it LEADER:
there, the name of the JetStream call would mean the account's own JetStream, which it has not."""
LEADER = "loom.v1.leader"

ACCOUNT = "LOOM"
WEAVER_INBOX = "_INBOX"

BUFFERED_EVENTS, BUFFERED_BYTES = 32, 16 << 20
"""That wait to be stored, of all agents together. What waits behind a flood waits for all of it, so this is
far below the server's own limit of 10,000; whoever is refused tries again."""

LOG_BYTES = 16 * 1024 * 1024
LOG_FILES = 3

Permissions = dict[str, object]


def check_node(node: str) -> str:
    """A node name is one token of a subject, and goes into permissions: nothing else may get in there."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", node):
        raise UsageError(f"{node!r} cannot be a node name", hint="use letters, digits, - and _ only")
    return node


def agent_account(node: str) -> str:
    return f"AGENT-{node}"


def agent_inbox(node: str) -> str:
    return f"_INBOX_{node}"


def weaver_permissions() -> Permissions:
    return {
        "publish": [
            "loom.v1.>",
            "$JS.API.>",
            "$JS.FC.>",
            f"$KV.{LEASE_BUCKET}.>",
            f"$O.{OBJECT_BUCKET}.>",
        ],
        "subscribe": ["loom.v1.>", f"{WEAVER_INBOX}.>"],
        "allow_responses": True,
    }


def agent_permissions(node: str) -> Permissions:
    return {
        "publish": [
            f"loom.v1.event.node.{node}.report",
            *(f"loom.v1.{what}.{node}" for what in ("telemetry", "window", "lease")),
            LEADER,
        ],
        "subscribe": [f"loom.v1.command.{node}", f"loom.v1.query.{node}", f"{agent_inbox(node)}.>"],
        # An answer goes to the inbox the request named, once, and not long after.
        "allow_responses": {"max": 1, "expires": "2m"},
    }


def accounts(weaver: str, agents: dict[str, str]) -> dict[str, object]:
    """One account for the weaver, with all streams, and one for each agent: node → public key.

    JetStream acknowledges a message to whatever reply subject its sender named, and does not check whether
    the sender may publish there. In one account with the weaver, an agent could write into the lease so.
    Between accounts the server puts a reply subject of its own in place of the sender's, and the answer goes
    back to the sender's account alone.
    """
    exports: list[dict[str, object]] = [
        {"service": LEASE_READ, "accounts": [agent_account(node) for node in agents]}
    ]
    imports: list[dict[str, object]] = []
    of_agents: dict[str, object] = {}
    for node, key in agents.items():
        agent = agent_account(node)
        event, lease = f"loom.v1.event.node.{node}.report", f"loom.v1.lease.{node}"
        heard = [f"loom.v1.{what}.{node}" for what in ("telemetry", "window")]
        asked = [f"loom.v1.{what}.{node}" for what in ("command", "query")]
        exports += ({"service": what, "accounts": [agent]} for what in (event, lease))
        imports += ({"stream": {"account": agent, "subject": subject}} for subject in heard)
        imports += ({"service": {"account": agent, "subject": subject}} for subject in asked)
        of_agents[agent] = {
            "users": [{"nkey": key, "permissions": agent_permissions(node)}],
            "exports": [
                *({"stream": subject, "accounts": [ACCOUNT]} for subject in heard),
                *({"service": subject, "accounts": [ACCOUNT]} for subject in asked),
            ],
            "imports": [
                *({"service": {"account": ACCOUNT, "subject": subject}} for subject in (event, lease)),
                {"service": {"account": ACCOUNT, "subject": LEASE_READ}, "to": LEADER},
            ],
            "limits": {"max_connections": 8, "max_subscriptions": 256, "max_payload": MAX_MESSAGE_BYTES},
        }
    return {
        ACCOUNT: {
            "jetstream": "enabled",
            "users": [{"nkey": weaver, "permissions": weaver_permissions()}],
            "exports": exports,
            "imports": imports,
        },
        **of_agents,
    }


def render(
    *,
    server_name: str,
    port: int,
    store_dir: str,
    log_file: str,
    weaver: str,
    agents: dict[str, str],
) -> str:
    """The configuration file, with public keys only. NATS reads JSON, so there is no quoting of our own."""
    config = {
        "server_name": server_name,
        "host": "127.0.0.1",
        "port": port,
        "max_payload": MAX_MESSAGE_BYTES,
        "log_file": log_file,
        "logfile_size_limit": LOG_BYTES,
        "logfile_max_num": LOG_FILES,
        # Decisions and audit live here: an acknowledged event must survive a power cut.
        "jetstream": {
            "store_dir": store_dir,
            "sync_interval": "always",
            "max_buffered_msgs": BUFFERED_EVENTS,
            "max_buffered_size": BUFFERED_BYTES,
        },
        "accounts": accounts(weaver, agents),
    }
    # NATS does not know JSON's \\u escapes: write a path with an accent as it is.
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"
