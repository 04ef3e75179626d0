"""One signed request to a receiver, and whether another try makes sense.

Follows no redirect: the address was written down on purpose. The signature covers time and body, so that a
receiver can refuse what is old or was sent by somebody else.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from torchloom.export.webhooks import Webhook

WITHIN_S = 10.0
FIRST_WAIT_S, MOST_WAIT_S = 1.0, 300.0
GIVE_UP_AFTER_S = 24 * 3600.0


@dataclass(frozen=True)
class DeliveryOutcome:
    """`done`: accepted, or refused in a way that no retry changes."""

    done: bool
    why: str = ""


def send(
    hook: Webhook, delivery: str, body: dict[str, Any], at_s: int, within_s: float = WITHIN_S
) -> DeliveryOutcome:
    """Send once. `delivery` is the same for every try, so that a receiver can drop a second one."""
    data = json.dumps(body, ensure_ascii=False).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "torchloom", "X-Loom-Delivery": delivery}
    if hook.secret:
        headers |= {"X-Loom-Time": str(at_s), "X-Loom-Signature": signature(hook.secret, at_s, data)}
    parts = urlsplit(hook.url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host, port = parts.hostname or "", parts.port
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(host, port, timeout=within_s, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=within_s)
    try:
        connection.request("POST", path, data, headers)
        answer = connection.getresponse()
        answer.read(65536)
        return outcome(answer.status)
    except (OSError, http.client.HTTPException) as error:
        return DeliveryOutcome(False, f"{type(error).__name__}: {error}".strip())
    finally:
        connection.close()


def outcome(status: int) -> DeliveryOutcome:
    """A receiver that is busy or broken is asked again; one that refuses is not."""
    if 200 <= status < 300:
        return DeliveryOutcome(True)
    return DeliveryOutcome(not (status in (408, 425, 429) or status >= 500), f"it answered {status}")


def signature(secret: str, at_s: int, data: bytes) -> str:
    """`sha256=` and the HMAC of "TIME." and the body."""
    return "sha256=" + hmac.new(secret.encode(), f"{at_s}.".encode() + data, hashlib.sha256).hexdigest()


def wait_s(tries: int) -> float:
    """Before the next try, after so many."""
    return min(MOST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(tries - 1, 20))
