"""Snapshots: the fleet as of one event, so that a new weaver need not replay from the beginning.

Two kinds, in slots of the object store that are used in turn: the *newest*, written every few hundred events,
and *anchors*, which stay for as long as their events are kept (core/history/trimming.py). Every snapshot
carries the checksum of its content. One that is damaged or unreadable is passed over for an older one. If
there is none, everything is replayed; if the first events were dropped by then, nothing is made up.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging

from torchloom.bus.protocol import Bus
from torchloom.errors import BusUnavailable, SnapshotsLost
from torchloom.model.fleet import Fleet
from torchloom.wire import codec

log = logging.getLogger(__name__)

FORMAT_NAME, FORMAT_NUMBER = b"loom-fleet-", 6
FORMAT = b"%s%d\n" % (FORMAT_NAME, FORMAT_NUMBER)
"""Old events may be gone, so every later version must read this: a test loads a recorded snapshot. New fields
have defaults; a change that msgspec cannot bridge needs a new name here and a reader of the old one."""
NEWEST = ("snapshot.0", "snapshot.1")
ANCHORS = ("anchor.0", "anchor.1", "anchor.2")
BEFORE = "snapshot"
"""Where earlier versions kept their only one. They dropped no event, so it is not read but removed."""
READ_WITHIN_S = 15.0
SNAPSHOT_EVERY = 500
"""Events between two snapshots."""
BYTES_AN_EVENT = 2048
"""Of a large fleet they are rarer: so much of a snapshot for each event that need not be replayed."""
_DIGEST = hashlib.sha256().digest_size


class Damaged(Exception):
    """A snapshot that is not what was stored."""


def pack(fleet: Fleet) -> bytes:
    content = codec.encode(fleet)
    return FORMAT + hashlib.sha256(content).digest() + content


def digest_of(packed: bytes) -> str:
    return packed[len(FORMAT) : len(FORMAT) + _DIGEST].hex()


def unpack(packed: bytes) -> Fleet:
    if not packed.startswith(FORMAT):
        named = packed[:32].partition(b"\n")[0]
        if named.startswith(FORMAT_NAME) and named[len(FORMAT_NAME) :].isdigit():
            theirs = int(named[len(FORMAT_NAME) :])
            raise Damaged(f"it has format {theirs}, this version reads {FORMAT_NUMBER}")
        raise Damaged("it has another format")
    content = packed[len(FORMAT) + _DIGEST :]
    if hashlib.sha256(content).digest() != packed[len(FORMAT) : len(FORMAT) + _DIGEST]:
        raise Damaged("its checksum is wrong")
    try:
        return codec.decode_fleet(content)
    except codec.DecodeError as error:
        raise Damaged(str(error)) from None


class Snapshots:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._slots: dict[str, int] = {}
        """The place of the snapshot in every slot that was read or written; -1: none that can be used."""
        self._size = 0
        """Bytes of the one that was read or written last."""

    async def load(self) -> Fleet:
        """The newest usable snapshot, or an empty fleet if everything can be replayed."""
        first, last = await self._bus.first_seq(), await self._bus.last_seq()
        for slots in (NEWEST, ANCHORS):
            found = [fleet for slot in slots if (fleet := await self._read(slot)) is not None]
            usable = [fleet for fleet in found if first - 1 <= fleet.seq <= last]
            self._forget_after(last)
            if usable:
                return max(usable, key=lambda fleet: fleet.seq)
        if first > 1:
            raise SnapshotsLost(
                f"No snapshot can be read, and the events before {first} were dropped, so the state of the "
                "jobs is not known",
                hint="restore the bus's files from a backup, or start with an empty LOOM_HOME",
            )
        return Fleet()

    def due(self, events: int) -> bool:
        """Whether so many events since the last one are worth another."""
        return events >= max(SNAPSHOT_EVERY, self._size // BYTES_AN_EVENT)

    async def save(self, fleet: Fleet) -> None:
        """Store the newest. The one before it stays."""
        await self._write(min(NEWEST, key=lambda slot: self._slots.get(slot, -1)), fleet.seq, pack(fleet))

    async def anchors(self, upto: int) -> list[int]:
        """Places of the anchors that can be read, oldest first. Those after `upto` are of another stream."""
        for slot in ANCHORS:
            if slot not in self._slots:
                await self._read(slot)
        self._forget_after(upto)
        return sorted(seq for slot, seq in self._slots.items() if slot in ANCHORS and seq >= 0)

    async def anchor(self, seq: int) -> Fleet | None:
        """The anchor of this place, read again from the store."""
        slot = next((slot for slot in ANCHORS if self._slots.get(slot) == seq), None)
        found = await self._read(slot) if slot is not None else None
        return found if found is not None and found.seq == seq else None

    async def oldest(self, upto: int) -> Fleet | None:
        """Where a replay of all events that are kept begins; None if some of them would be missing."""
        first = await self._bus.first_seq()
        if first <= 1:
            return Fleet()
        for seq in await self.anchors(upto):
            if seq >= first - 1:
                return await self.anchor(seq)
        return None

    async def as_of(self, at_ns: int) -> Fleet | None:
        """The fleet of the newest snapshot from before this time, or the oldest from which all kept events
        can be replayed; None if there is none."""
        first = await self._bus.first_seq()
        found = [fleet for slot in (*ANCHORS, *NEWEST) if (fleet := await self._read(slot)) is not None]
        usable = sorted((fleet for fleet in found if fleet.seq >= first - 1), key=lambda fleet: fleet.seq)
        early = [fleet for fleet in usable if fleet.now_ns <= at_ns]
        if early:
            return early[-1]
        if first <= 1:
            return Fleet()
        return usable[0] if usable else None

    async def put_anchor(self, seq: int, packed: bytes) -> bool:
        """Store an anchor in place of the oldest; whether it is there as it was written."""
        await self.anchors(seq)
        slot = min(ANCHORS, key=lambda slot: self._slots.get(slot, -1))
        await self._write(slot, seq, packed)
        stored = await self._get(slot)
        if stored == packed:
            return True
        log.error("the snapshot of event %d was not stored as it was written", seq)
        self._slots[slot] = -1
        return False

    async def forget_former(self) -> None:
        await self._bus.delete_object(BEFORE)

    def _forget_after(self, last: int) -> None:
        self._slots = {slot: seq if seq <= last else -1 for slot, seq in self._slots.items()}

    async def _write(self, slot: str, seq: int, packed: bytes) -> None:
        self._slots[slot], self._size = -1, len(packed)  # until it is written
        await self._bus.put_object(slot, packed)
        self._slots[slot] = seq

    async def _read(self, slot: str) -> Fleet | None:
        packed = await self._get(slot)
        self._slots[slot] = -1
        if packed is None:
            return None
        try:
            fleet = unpack(packed)
        except Damaged as error:
            log.warning("the snapshot in %s cannot be used: %s", slot, error)
            return None
        self._slots[slot], self._size = fleet.seq, len(packed)
        return fleet

    async def _get(self, slot: str) -> bytes | None:
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                return await self._bus.get_object(slot)
        except TimeoutError:
            log.warning("the snapshot in %s cannot be read: no answer", slot)
        except BusUnavailable as error:
            log.warning("the snapshot in %s cannot be read: %s", slot, error.message)
        return None
