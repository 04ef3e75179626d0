"""The embedded server's configuration: who may do what on the bus.

Owns the text of `nats.conf`, the rights of the two roles, and the names and version both sides agree on.
Writes nothing, starts nothing, and does not import nats-py.

    weaver   everything of torchloom, and JetStream
    agent    events and telemetry of its own node, commands and queries for it, answers to those;
             no stream, no lease, no object, no other node, and an inbox that nobody else may read
"""

from __future__ import annotations

import json
import re

from torchloom.bus.protocol import MAX_MESSAGE_BYTES
from torchloom.errors import UsageError

MIN_SERVER_VERSION = (2, 10, 0)
"""The first whose stream information carries the server's own time, on which leases rest."""

EVENT_STREAM = "LOOM_EVENTS"
LEASE_BUCKET = "LOOM_LEASE"
OBJECT_BUCKET = "LOOM_OBJECTS"

WEAVER_USER = "weaver"
WEAVER_INBOX = "_INBOX"

LOG_BYTES = 16 * 1024 * 1024
LOG_FILES = 3

Permissions = dict[str, object]


def check_node(node: str) -> str:
    """A node name is one token of a subject, and goes into permissions: nothing else may get in there."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", node):
        raise UsageError(f"{node!r} cannot be a node name", hint="use letters, digits, - and _ only")
    return node


def agent_user(node: str) -> str:
    return f"agent-{node}"


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
            f"loom.v1.event.node.{node}.>",
            *(f"loom.v1.{what}.{node}" for what in ("telemetry", "window", "lease")),
        ],
        "subscribe": [f"loom.v1.command.{node}", f"loom.v1.query.{node}", f"{agent_inbox(node)}.>"],
        # An answer goes to the inbox the request named, once, and not long after.
        "allow_responses": {"max": 1, "expires": "2m"},
    }


def render(
    *,
    server_name: str,
    port: int,
    store_dir: str,
    log_file: str,
    node: str,
    passwords: dict[str, str],
) -> str:
    """The configuration file. NATS reads JSON, which needs no quoting rules of our own."""
    users = [
        {"user": WEAVER_USER, "password": passwords["weaver"], "permissions": weaver_permissions()},
        {"user": agent_user(node), "password": passwords["agent"], "permissions": agent_permissions(node)},
    ]
    config = {
        "server_name": server_name,
        "host": "127.0.0.1",
        "port": port,
        "max_payload": MAX_MESSAGE_BYTES,
        "log_file": log_file,
        "logfile_size_limit": LOG_BYTES,
        "logfile_max_num": LOG_FILES,
        # Decisions and audit live here: an acknowledged event must survive a power cut.
        "jetstream": {"store_dir": store_dir, "sync_interval": "always"},
        "accounts": {"LOOM": {"jetstream": "enabled", "users": users}},
    }
    return json.dumps(config, indent=2) + "\n"
