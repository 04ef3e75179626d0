"""NATS's signed claims (JWT with nkeys): who may do what, proven by a signature and not by a server's file.

Owns the encoding of operator, account and user claims. A server that knows the operator accepts what the
operator or one of its accounts signed, so a host can be admitted without touching any server's configuration.
Knows nothing of torchloom's subjects (`cluster_accounts`).
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from torchloom.bus.keys import public_key

_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
NO_LIMIT = -1


def operator(seed: str, system_account: str, at_s: int) -> str:
    """The operator's claims about itself."""
    about = {"type": "operator", "version": 2, "system_account": system_account}
    return _signed(seed, public_key(seed), "torchloom", about, at_s)


def account(
    operator_seed: str,
    key: str,
    name: str,
    at_s: int,
    *,
    exports: list[dict[str, object]] | None = None,
    imports: list[dict[str, object]] | None = None,
    stores: bool = False,
    revoked: dict[str, int] | None = None,
) -> str:
    """An account's claims. `revoked`: of these users (public key), what was signed until then is void."""
    limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), NO_LIMIT)
    stored = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), NO_LIMIT if stores else 0)
    about: dict[str, object] = {
        "type": "account",
        "version": 2,
        "limits": {**limits, **stored, "wildcards": True},
        "default_permissions": {"pub": {}, "sub": {}},
        "exports": exports or [],
        "imports": imports or [],
    }
    if revoked:
        about["revocations"] = revoked
    return _signed(operator_seed, key, name, about, at_s)


def user(
    account_seed: str,
    key: str,
    name: str,
    at_s: int,
    *,
    publish: list[str],
    subscribe: list[str],
    answers: int = NO_LIMIT,
    answer_within_s: float = 0.0,
    payload: int = NO_LIMIT,
    subscriptions: int = NO_LIMIT,
) -> str:
    """A user's claims: the subjects it may use, and how often and how long it may answer a request."""
    about: dict[str, object] = {
        "type": "user",
        "version": 2,
        "pub": {"allow": publish},
        "sub": {"allow": subscribe},
        "resp": {"max": answers, "ttl": int(answer_within_s * 1e9)},
        "subs": subscriptions,
        "data": NO_LIMIT,
        "payload": payload,
    }
    return _signed(account_seed, key, name, about, at_s)


def claims(token: str) -> dict[str, Any]:
    """What a JWT says, without a look at its signature; empty if it is none."""
    try:
        found = json.loads(_unpadded(token.split(".")[1]))
    except (IndexError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _signed(seed: str, subject: str, name: str, about: dict[str, object], at_s: int) -> str:
    import nkeys

    body: dict[str, object] = {
        "iat": at_s,
        "iss": public_key(seed),
        "name": name,
        "sub": subject,
        "nats": about,
    }
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).digest()
    body["jti"] = base64.b32encode(digest).decode().rstrip("=")
    text = f"{_coded(json.dumps(_HEADER).encode())}.{_coded(json.dumps(body).encode())}"
    pair: Any = nkeys.from_seed(bytearray(seed.encode()))
    return f"{text}.{_coded(pair.sign(text.encode()))}"


def _coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _unpadded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
