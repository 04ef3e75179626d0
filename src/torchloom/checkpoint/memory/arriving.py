"""States that the agent of this host brings from another node while the ranks already start.

    coming-<rank>           locked by the agent while it brings states of the rank; one line of JSON: which
                            there are, newest first. Without a line, nobody knows yet
    wish-<rank>             the save that the rank restores; empty: it needs none any more
    arriving-<who>.<slot>   an image on its way; sealed when it is whole

A rank waits only in restore(), and only while the lock is held: an agent that dies releases it. The agent
brings the newest state at once and another one only if the ranks agreed on that. It never writes a file that
a rank may write, too: the rank itself gives an image that has arrived its place. Owns both ends of these
files. Needs no torch.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torchloom.checkpoint.memory import tier
from torchloom.checkpoint.memory.header import read_header
from torchloom.checkpoint.store.names import CheckpointName, parse_name

LIMIT_S = 600.0
"""A rank waits no longer than this for an agent that neither brings a state nor gives up."""
_LOOK_EVERY_S = 0.005


@dataclass(frozen=True)
class Promise:
    """A state that the agent can bring."""

    name: CheckpointName
    save: str
    world: int
    slot: int


class Bringing:
    """The agent's end, for one rank: from before the rank starts until it has what it needs."""

    def __init__(self, folder: Path, rank: int) -> None:
        """Raises OSError."""
        self._folder, self._rank = folder, rank
        self.published: list[str] = []
        """The saves that were promised."""
        self._drop("")
        for path in (tier.coming(folder, rank), tier.wish(folder, rank)):
            path.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(tier.coming(folder, rank), flags, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def publish(self, promises: Sequence[Promise]) -> None:
        """Say what can be had, newest first. Raises OSError."""
        facts = [[str(one.name), one.save, one.world, one.slot] for one in promises]
        os.pwrite(self._descriptor, json.dumps(facts).encode() + b"\n", 0)
        self.published = [one.save for one in promises]

    def wished(self) -> str | None:
        """The save that the rank restores; empty: none of these; None: it has not said yet."""
        try:
            return tier.wish(self._folder, self._rank).read_text()
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Nothing more will come. What the rank chose is left to it, and everything to a later start."""
        path = tier.coming(self._folder, self._rank)
        with suppress(OSError):
            if os.path.samestat(os.stat(path), os.fstat(self._descriptor)):
                self._drop(self.wished() or "")
                path.unlink()
        os.close(self._descriptor)

    def _drop(self, but: str) -> None:
        for slot in range(tier.SLOTS):
            path = tier.arriving(self._folder, tier.own(self._rank), slot)
            found = read_header(path)
            if not but or found is None or found[0].save != but:
                with suppress(OSError):
                    path.unlink()


class StateArrivals:
    """The rank's end."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank

    def promised(self) -> list[Promise]:
        """What can be had, newest first; waits until the agent knows."""
        until_s = time.monotonic() + LIMIT_S
        while time.monotonic() < until_s:
            busy, text = self._look()
            if not busy:
                return []
            if text.endswith(b"\n"):
                return _parse(text)
            time.sleep(_LOOK_EVERY_S)
        return []

    def take(self, promise: Promise) -> bool:
        """Wait until it has arrived, and give it its place; False: it has not."""
        self._wish(promise.save)
        until_s = time.monotonic() + LIMIT_S
        while True:
            busy, _ = self._look()  # looked at before the image: what came last is not missed
            if self._place(promise):
                return True
            if not busy or time.monotonic() > until_s:
                return False
            time.sleep(_LOOK_EVERY_S)

    def done(self) -> None:
        """All ranks have restored: what has not been taken is not needed. What an agent that died was
        bringing is removed here; nobody else would."""
        busy, _ = self._look()
        if busy:
            self._wish("")
            return
        left = [tier.coming(self._folder, self._rank), tier.wish(self._folder, self._rank)]
        for who in (tier.own(self._rank), tier.SHARED):
            left += [tier.arriving(self._folder, who, slot) for slot in range(tier.SLOTS)]
        for path in left:
            with suppress(OSError):
                path.unlink()

    def _look(self) -> tuple[bool, bytes]:
        """(does the agent bring something, what it has published)."""
        try:
            with open(tier.coming(self._folder, self._rank), "rb", buffering=0) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True, file.read()
        except OSError:
            pass
        return False, b""

    def _place(self, promise: Promise) -> bool:
        own = tier.own(self._rank)
        come = tier.arriving(self._folder, own, promise.slot)
        if not _is(come, promise.save):
            return _is(tier.file(self._folder, own, promise.slot), promise.save)
        shared = tier.arriving(self._folder, tier.SHARED, promise.slot)
        with suppress(FileNotFoundError):  # another rank of this host was first
            if _is(shared, promise.save):
                os.replace(shared, tier.file(self._folder, tier.SHARED, promise.slot))
        os.replace(come, tier.file(self._folder, own, promise.slot))
        return True

    def _wish(self, save: str) -> None:
        path = tier.wish(self._folder, self._rank)
        with suppress(OSError):
            path.with_suffix(".new").write_text(save)
            os.replace(path.with_suffix(".new"), path)


def _is(path: Path, save: str) -> bool:
    found = read_header(path)
    return found is not None and found[0].save == save


def _parse(text: bytes) -> list[Promise]:
    try:
        rows = [(parse_name(str(row[0])), str(row[1]), int(row[2]), int(row[3])) for row in json.loads(text)]
    except (ValueError, TypeError, LookupError, RecursionError):
        return []
    return [Promise(row[0], row[1], row[2], row[3]) for row in rows if row[0] is not None]
