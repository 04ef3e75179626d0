"""Keys of the bus's users in NATS's own encoding (nkeys): a secret seed, and the public half of it.

Imports the cryptography only when it is used: the supervisor asks for nothing else here.
"""

from __future__ import annotations

import base64
import secrets
from typing import Any


def new_seed() -> str:
    """A new user's key, as NATS writes it."""
    import nkeys

    seed: bytes = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)
    return seed.decode()


def public_key(seed: str) -> str:
    """What the server may know of a seed."""
    import nkeys

    pair: Any = nkeys.from_seed(bytearray(seed.encode()))
    key: bytes = pair.public_key
    return key.decode()


def signature(seed: str, nonce: str) -> bytes:
    """Proof for a server that we hold the seed, as its protocol has it."""
    import nkeys

    pair: Any = nkeys.from_seed(bytearray(seed.encode()))
    return base64.b64encode(pair.sign(nonce.encode()))
