"""Named tokens: who may call the API, and with which role. Owns LOOM_HOME/tokens.json (0600, hashes only).

A token is 256 bits of chance, so a plain SHA-256 of it cannot be turned back. Sessions of browsers are signed
with the hash of their token: they need no storage, survive a restart and end with the token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from torchloom.api.schemas.bodies import Identity, Role, TokenMade, TokenView
from torchloom.api.sessions import EndedSessions, write_private
from torchloom.errors import Conflict, HomeUnusable, NotAllowed, NotFound

SESSION_S = 12 * 3600
FIRST = "admin"
"""Name of the token that the home was made with; it cannot be removed here."""

POD = "pod "
"""Before the node in the name of a pod's token: no token that a person makes has a space in its name."""


class TokenEntry(msgspec.Struct, frozen=True):
    name: str
    role: Role
    hash: str
    created_at_ns: int


class Tokens:
    """All tokens of one service. The file is read again when another service of this home has changed it."""

    def __init__(
        self, first: str, path: Path | None = None, pod_of: Callable[[str], str] | None = None
    ) -> None:
        """`pod_of`: the node whose pod has this token, for tokens that end with a node's admission."""
        self._pod_of = pod_of
        self._first = TokenEntry(FIRST, "admin", _hash(first), 0)
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._entries: dict[str, TokenEntry] = {FIRST: self._first}
        self._ended = EndedSessions(path.with_name("sessions.json") if path is not None else None)
        self._load()

    def who(self, token: str) -> Identity | None:
        """Whose token it is. Every entry is compared, so that the timing reveals nothing."""
        self._load()
        given, found = _hash(token), None
        for entry in self._entries.values():
            if hmac.compare_digest(given, entry.hash):
                found = entry
        if found is not None:
            return Identity(name=found.name, role=found.role)
        node = self._pod_of(token) if self._pod_of is not None else ""
        return Identity(name=f"{POD}{node}", role="operator") if node else None

    # -- sessions of browsers ---------------------------------------------------------------------
    def new_session(self, who: Identity, now_s: float) -> str:
        if who.name not in self._entries:
            raise NotAllowed("A pod's token opens no session", hint="log in with a token of your own")
        text = f"{who.name}.{secrets.token_hex(8)}.{int(now_s) + SESSION_S}"
        return f"{text}.{self._sign(self._entries[who.name], text)}"

    def session(self, cookie: str, now_s: float) -> Identity | None:
        self._load()
        text, _, signature = cookie.rpartition(".")
        stem, _, until = text.rpartition(".")
        name, _, number = stem.rpartition(".")
        entry = self._entries.get(name)
        if entry is None or not until.isdecimal() or len(until) > 12 or int(until) < now_s:
            return None
        if number in self._ended.read():
            return None
        right = hmac.compare_digest(signature.encode(), self._sign(entry, text).encode())
        return Identity(name=entry.name, role=entry.role) if right else None

    def end_session(self, cookie: str, now_s: float) -> None:
        """Log out. The cookie's signature stays valid, so its end is recorded until it expires."""
        if self.session(cookie, now_s) is not None:
            text, _, until = cookie.rpartition(".")[0].rpartition(".")
            self._ended.add(text.rpartition(".")[2], int(until), now_s)

    def _sign(self, entry: TokenEntry, text: str) -> str:
        digest = hmac.digest(entry.hash.encode(), text.encode(), "sha256")
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    # -- changes ----------------------------------------------------------------------------------
    def all(self) -> list[TokenView]:
        self._load()
        return [
            TokenView(name=e.name, role=e.role, created_at_ns=e.created_at_ns) for e in self._entries.values()
        ]

    def add(self, name: str, role: Role) -> TokenMade:
        self._load()
        if name in self._entries:
            raise Conflict(
                f"There is a token named {name} already", hint="remove it first or choose another name"
            )
        token = secrets.token_urlsafe(32)
        entry = TokenEntry(name, role, _hash(token), time.time_ns())
        self._save({**self._entries, name: entry})
        return TokenMade(name=name, role=role, created_at_ns=entry.created_at_ns, token=token)

    def remove(self, name: str) -> None:
        self._load()
        if name == FIRST:
            raise Conflict(
                "The first token cannot be removed", hint="write a new one into LOOM_HOME/token and restart"
            )
        if name not in self._entries:
            raise NotFound(f"There is no token named {name!r}")
        self._save({k: v for k, v in self._entries.items() if k != name})

    def _load(self) -> None:
        if self._path is None:
            return
        try:
            status = self._path.stat()
        except OSError:
            self._stamp, self._entries = None, {FIRST: self._first}
            return
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self._stamp:
            try:
                found = msgspec.json.decode(self._path.read_bytes(), type=list[TokenEntry])
            except (OSError, msgspec.DecodeError) as error:
                # Accept only the first token: a damaged file must not grant access.
                self._entries, self._stamp = {FIRST: self._first}, stamp
                raise HomeUnusable(f"{self._path.name} cannot be read ({type(error).__name__}).") from error
            self._stamp = stamp
            self._entries = {FIRST: self._first} | {entry.name: entry for entry in found}

    def _save(self, entries: dict[str, TokenEntry]) -> None:
        self._entries = entries
        if self._path is None:
            return
        write_private(
            self._path, msgspec.json.encode([entry for entry in entries.values() if entry.name != FIRST])
        )
        self._stamp = None


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()
