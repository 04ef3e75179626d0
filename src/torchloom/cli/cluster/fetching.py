"""What a host fetches from a control service: the authorities to trust, and what its key may do.

The first connection to a cluster proves nothing by itself. So the authorities that are sent there count only
if the join token names one of them, and the token is sent only over a connection that this one has proven.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import re
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from torchloom.cli.cluster.authority import fingerprint, pieces
from torchloom.cli.cluster.host_files import bracketed
from torchloom.cli.cluster.node_files import JoinedNode, ca_file, replace_ca
from torchloom.client import Client, Endpoint
from torchloom.errors import LoomError, NotAllowed, TimedOut, UsageError
from torchloom.home import Home

if TYPE_CHECKING:
    from torchloom.client.schema import JoinView

log = logging.getLogger(__name__)

TIMEOUT_S = 20.0
REFRESH_EVERY_S = float(os.environ.get("LOOM_CA_REFRESH_S") or 3600.0)
_TOKEN = re.compile(r"loomjoin1\.[0-9a-f]+\.[0-9a-f]+\.([0-9a-f]{64})")
UNANSWERED = "is `loom up` running on that host, and does a firewall let this host reach the port?"
MOST_BYTES = 1 << 20


def address_of(given: str) -> str:
    """The address of a control service, as https."""
    url = given if "://" in given else f"https://{bracketed(given)}"
    try:
        parts = urlsplit(url)
        port = parts.port or 8700
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme != "https" or not parts.hostname:
        raise UsageError(f"{given!r} is not an address", hint="write https://host:port")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"https://{host}:{port}"


def pinned_authority(address: str, token: str) -> str:
    """The authority (PEM) that the token names, as the service sent it."""
    named = _TOKEN.fullmatch(token)
    if named is None:
        raise UsageError("that is no join token", hint="`loom node token` makes one")
    for one in pieces(_unproven_authorities(address)):
        if fingerprint(one) == named[1]:
            return one
    raise NotAllowed(
        f"the service at {address} is not of the cluster that the token is for",
        hint="check the address; nothing was sent there",
    )


def _unproven_authorities(address: str) -> str:
    parts = urlsplit(address)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(
        parts.hostname or "", parts.port, timeout=TIMEOUT_S, context=context
    )
    try:
        connection.request("GET", "/api/v1/join/ca")
        answer = connection.getresponse()
        found = json.loads(answer.read(MOST_BYTES))
        return str(found["ca"]) if answer.status == 200 else ""
    except (OSError, http.client.HTTPException) as error:
        raise TimedOut(f"no control service answers at {address} ({error})", hint=UNANSWERED) from None
    except (ValueError, KeyError, TypeError):
        return ""
    finally:
        connection.close()


def own_address(address: str) -> str:
    """The address of this host from which it reaches the service: others reach it there, too."""
    import socket

    parts = urlsplit(address)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=TIMEOUT_S) as one:
            return str(one.getsockname()[0]).partition("%")[0]
    except OSError as error:
        raise TimedOut(f"no control service answers at {address} ({error})", hint=UNANSWERED) from None


def ask_to_join(address: str, token: str, node: str, key: str, authority: str) -> JoinView:
    """Present the token over a connection that the pinned authority proves."""
    with tempfile.TemporaryDirectory() as directory:
        pinned = Path(directory) / "ca.pem"
        pinned.write_text(authority)
        api = Client(Endpoint(address, "", ca=str(pinned)), timeout_s=TIMEOUT_S)
        try:
            return api.join({"token": token, "node": node, "key": key})
        finally:
            api.close()


async def keep_authorities(home: Home) -> None:
    """Follow a rotation: fetch the authorities now and then, over a connection that the known ones prove."""
    joined = JoinedNode.read(home)
    while joined is not None:
        try:
            await asyncio.to_thread(refresh_authorities, home, joined)
        except (LoomError, OSError) as error:
            log.info("the cluster's authorities could not be fetched: %s", error)
        await asyncio.sleep(REFRESH_EVERY_S)


def refresh_authorities(home: Home, joined: JoinedNode) -> bool:
    """Whether they had changed. Raises LoomError if no control service answers."""
    known = ca_file(home).read_text()
    failure: LoomError | None = None
    for address in joined.apis:
        api = Client(Endpoint(address, "", ca=str(ca_file(home))), timeout_s=TIMEOUT_S)
        try:
            found = api.join_authorities()["ca"]
        except LoomError as error:
            failure = error
            continue
        finally:
            api.close()
        if found == known or not pieces(found):
            return False
        replace_ca(home, found)
        log.warning("the cluster's authorities have changed; %d are trusted now", len(pieces(found)))
        return True
    raise failure or TimedOut("no control service is known")
