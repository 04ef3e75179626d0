"""A lease on a NATS key-value bucket.

Owns the rule who may take it: each write is conditional on the last revision, the last value is never
deleted, and the epoch is above the last revision and the last epoch, so epochs only grow. A bucket that was
made anew knows neither: the candidate then says which epoch it knows of. A candidate may take over when
the holder's last write is older than its TTL, by the server's clock or because the candidate itself has
watched it unchanged for so long. Clocks that jump can therefore cost a takeover too early, never two holders
with the same epoch: receivers of commands refuse the lower one.
"""

from __future__ import annotations

import base64
import json
import logging
import secrets
import time
from dataclasses import dataclass
from typing import Any

from torchloom.bus.nats_config import LEASE_BUCKET
from torchloom.bus.nats_link import Link
from torchloom.bus.nats_stream import NS_PER_S, api, get_message, message_in, parse_time_ns, store
from torchloom.bus.protocol import REQUEST_TIMEOUT_S
from torchloom.errors import BusUnavailable, Conflict

log = logging.getLogger(__name__)

STREAM = f"KV_{LEASE_BUCKET}"
LONGEST_TTL_S = 3600.0
SCHEMA = 1
NEWER_TTL_S = 10.0
"""For how long an entry of a newer schema that does not change counts as held."""
HIGHEST_EPOCH = 2**53


@dataclass(frozen=True, slots=True)
class _Entry:
    revision: int
    token: str
    """Unique to one candidate; empty after a release, and in an entry that cannot be read."""
    ttl_s: float
    at_ns: int
    epoch: int
    """Of the acquisition; 0 after a release."""
    last_epoch: int = 0
    """The highest that this entry knows of, also after a release."""


def parse_entry(message: dict[str, Any]) -> _Entry:
    """The stored entry. One that cannot be read is free; its revision still counts, so epochs only grow."""
    revision, at_ns = int(message["seq"]), parse_time_ns(message["time"])
    try:
        value = json.loads(base64.b64decode(message.get("data", "")))
        if isinstance(schema := value.get("schema", SCHEMA), int) and schema > SCHEMA:
            log.warning("the lease is held by a newer version (schema %d)", schema)
            return _Entry(revision, f"schema {schema}", NEWER_TTL_S, at_ns, revision, revision)
        token, ttl_s, epoch = value["token"], value["ttl_s"], value["epoch"]
        if not isinstance(token, str) or isinstance(ttl_s, bool) or not isinstance(epoch, int):
            raise TypeError("an entry of another kind")
        if not 0 < ttl_s <= LONGEST_TTL_S or not 0 <= epoch < HIGHEST_EPOCH:
            raise ValueError("an entry that no weaver writes")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        log.warning("the lease at revision %d cannot be read; it counts as free", revision)
        return _Entry(revision, "", 0.0, at_ns, 0)
    # Earlier versions wrote an acquisition without an epoch: it was the revision.
    known = epoch or revision
    return _Entry(revision, token, float(ttl_s), at_ns, known if token else 0, max(known, revision))


async def held_epoch(link: Link, name: str, timeout_s: float) -> int:
    """The epoch of the current or last lease holder; 0 if there is none."""
    query = {"last_by_subj": f"$KV.{LEASE_BUCKET}.{name}"}
    if not link.address.leader:
        message = await get_message(link, STREAM, query, timeout_s)
    else:
        await link.wait_connected(timeout_s)
        answer = await link.request(link.address.leader, json.dumps(query).encode(), timeout_s)
        message = message_in(json.loads(answer.data), link)
    return parse_entry(message).epoch if message is not None else 0


class NatsLease:
    def __init__(self, link: Link, name: str, holder: str, ttl_s: float) -> None:
        self._link = link
        self._subject = f"$KV.{LEASE_BUCKET}.{name}"
        self._holder = holder
        self._token = f"{holder}#{secrets.token_hex(8)}"
        self._ttl_s = ttl_s
        self._timeout_s = min(REQUEST_TIMEOUT_S, ttl_s)
        """An answer that comes after the TTL is worth nothing."""
        self._epoch: int | None = None
        self._revision = 0
        self._until_s = 0.0
        self._watched: tuple[int, float] = (0, 0.0)
        """The other holder's revision, and when we first saw it."""

    @property
    def epoch(self) -> int | None:
        return self._epoch

    @property
    def expired(self) -> bool:
        return self._epoch is None or time.monotonic() >= self._until_s

    async def acquire(self, above: int = 0) -> int | None:
        if self._epoch is not None and await self.renew():
            return self._epoch
        entry = await self._read()
        # Our own token without an epoch: an earlier acquisition arrived but its answer did not.
        if entry is not None and entry.token not in ("", self._token) and not await self._stale(entry):
            return None
        try:
            highest = max(above, entry.revision, entry.last_epoch) if entry else above
            await self._write(self._token, entry.revision if entry else 0, highest + 1)
        except Conflict:
            return None
        self._epoch = highest + 1
        return self._epoch

    async def renew(self) -> bool:
        if self._epoch is None:
            return False
        try:
            await self._write(self._token, self._revision, self._epoch)
            return True
        except Conflict:
            # Perhaps our last renewal arrived and only its answer was lost: then the entry is still ours.
            entry = await self._read()
        if entry is not None and entry.token == self._token:
            try:
                await self._write(self._token, entry.revision, self._epoch)
                return True
            except Conflict:
                pass
        self._epoch = None
        return False

    async def release(self) -> None:
        if self._epoch is None:
            return
        epoch, self._epoch = self._epoch, None
        try:
            await self._write("", self._revision, epoch)
        except (Conflict, BusUnavailable):
            return  # taken over, or the bus is unreachable: the TTL releases it

    async def _write(self, token: str, expect: int, epoch: int) -> None:
        began_s = time.monotonic()
        value = json.dumps(
            {
                "schema": SCHEMA,
                "holder": self._holder,
                "token": token,
                "ttl_s": self._ttl_s,
                "epoch": epoch,
            }
        ).encode()
        self._revision = await store(
            self._link, self._subject, value, timeout_s=self._timeout_s, expect_last=expect
        )
        self._until_s = began_s + self._ttl_s

    async def _read(self) -> _Entry | None:
        message = await get_message(self._link, STREAM, {"last_by_subj": self._subject}, self._timeout_s)
        return None if message is None else parse_entry(message)

    async def _stale(self, entry: _Entry) -> bool:
        now_s = time.monotonic()
        if self._watched[0] != entry.revision:
            self._watched = (entry.revision, now_s)
        if now_s - self._watched[1] >= entry.ttl_s:
            return True
        info = await api(self._link, f"STREAM.INFO.{STREAM}", None, self._timeout_s)
        return parse_time_ns(info["ts"]) - entry.at_ns >= entry.ttl_s * NS_PER_S
