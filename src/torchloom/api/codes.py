"""One-time codes that sign a browser in. Owns who may use which code until when; stores nothing on disk.

A code belongs to the identity that asked for it and opens one session, once. It travels in a link's
fragment, which no browser sends to a server, and the page exchanges it at once and removes it from its
address. A service that was restarted knows no codes: `loom open` makes a new one.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict

from torchloom.api.schemas.bodies import Identity

CODE_S = 15 * 60
MOST = 256
"""Most codes that wait to be used; a new one replaces the oldest."""


class Codes:
    def __init__(self) -> None:
        self._waiting: OrderedDict[str, tuple[Identity, float]] = OrderedDict()

    def make(self, who: Identity, now_s: float) -> str:
        code = secrets.token_urlsafe(24)
        self._waiting[_hash(code)] = (who, now_s + CODE_S)
        while len(self._waiting) > MOST:
            self._waiting.popitem(last=False)
        return code

    def take(self, code: str, now_s: float) -> Identity | None:
        """The identity the code belongs to; None if the code was used before or has expired."""
        who, until_s = self._waiting.pop(_hash(code), (None, 0.0))
        return who if until_s >= now_s else None


def _hash(code: str) -> str:
    return hashlib.sha256(code.encode(errors="surrogateescape")).hexdigest()
