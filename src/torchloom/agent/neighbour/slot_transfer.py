"""Slot files of the memory tier, sent and received whole or not at all.

A sender compares the slot's header before and after: the training wipes it before it touches the image, so an
equal header means that the image was not touched. A receiver wipes the header of its own file first and
writes it last. What was damaged on the way is refused by the channel; what was damaged in memory, by the
image's sums when it is restored.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from torchloom.agent.neighbour.channel import Channel, NeighbourFailed
from torchloom.checkpoint.memory import tier
from torchloom.checkpoint.memory.header import HEADER, SlotHeader, parse, read_header

COPIES = 2
"""Of each rank of another host: one that is whole, and one on its way."""
_reserving = threading.Lock()


@dataclass(frozen=True)
class KeptSlot:
    """A sealed slot of this host."""

    header: SlotHeader
    path: Path
    head: bytes


class SendingPace:
    """Keeps what is sent within so many bytes a second; 0: no limit."""

    def __init__(self, bytes_per_s: float) -> None:
        self._rate, self._sent, self._began_s = bytes_per_s, 0, time.monotonic()

    def sent(self, count: int) -> None:
        self._sent += count
        if self._rate:
            time.sleep(max(0.0, self._sent / self._rate - (time.monotonic() - self._began_s)))


def slots(paths: Iterable[Path]) -> list[KeptSlot]:
    """The sealed ones among these files, newest first."""
    found = [(path, read_header(path)) for path in paths]
    kept = [KeptSlot(one[0], path, one[1]) for path, one in found if one is not None]
    return sorted(kept, key=lambda one: (one.header.name.age, one.header.sealed_ns), reverse=True)


def own_slots(folder: Path, rank: int) -> list[KeptSlot]:
    return slots(tier.file(folder, tier.own(rank), slot) for slot in range(tier.SLOTS))


def shared_slots(folder: Path) -> list[KeptSlot]:
    return slots(tier.file(folder, tier.SHARED, slot) for slot in range(tier.SLOTS))


def copied_slots(folder: Path, rank: int) -> list[KeptSlot]:
    return slots(tier.copy(folder, rank, slot) for slot in range(COPIES))


def gathered_slots(folder: Path, who: int | str) -> list[KeptSlot]:
    return slots([tier.gathered(folder, who)])


def all_slots(folder: Path, rank: int) -> list[KeptSlot]:
    """Everything here of one rank. Files move only from a kind to one that is looked at later."""
    return [*own_slots(folder, rank), *copied_slots(folder, rank), *gathered_slots(folder, rank)]


def send(channel: Channel, slot: KeptSlot, pace: SendingPace, wanted: Callable[[], bool]) -> None:
    """Send a slot. The last message says whether it stayed as it was meanwhile. Raises NeighbourFailed."""
    try:
        with open(slot.path, "rb", buffering=0) as file:  # it may get another name meanwhile (gathering.py)
            channel.send(slot.head)
            at = HEADER
            while at < slot.header.whole and wanted():
                count = channel.send_file(file.fileno(), at, slot.header.whole - at)
                if not count:
                    raise NeighbourFailed("the state was cut short")
                at += count
                pace.sent(count)
            same = wanted() and os.pread(file.fileno(), HEADER, 0) == slot.head
    except OSError as error:
        raise NeighbourFailed(f"the state cannot be read ({error.strerror})") from error
    channel.say(whole=same)
    if not same:
        raise NeighbourFailed("the state was overwritten while it was being sent")


def reserve(path: Path, size: int) -> None:
    """Take the memory of a slot before any of it is sent: states that come together would otherwise all find
    room, and fill what the training needs. What was in the file is given up. Raises NeighbourFailed."""
    with _reserving:
        try:
            taken = path.stat().st_size if path.exists() else 0
            if size > taken + tier.usable(path.parent):
                raise NeighbourFailed(f"there is no room for {size >> 20:,} MiB")
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.pwrite(descriptor, bytes(HEADER), 0)
                if taken < size:
                    os.posix_fallocate(descriptor, 0, size)
            finally:
                os.close(descriptor)
        except (OSError, NeighbourFailed) as error:
            path.unlink(missing_ok=True)
            if isinstance(error, NeighbourFailed):
                raise
            raise NeighbourFailed(f"there is no room for {size >> 20:,} MiB ({error.strerror})") from error


def receive(channel: Channel, path: Path, size: int, save: str, wanted: Callable[[], bool]) -> SlotHeader:
    """Write a slot that is being sent to a file of ours. Raises NeighbourFailed; the file then holds
    nothing."""
    head = channel.receive()
    header = parse(head)
    if len(head) != HEADER or header is None or header.save != save or header.whole != size:
        raise NeighbourFailed("it is not the state that was announced")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.pwrite(descriptor, bytes(HEADER), 0)
            at = HEADER
            while at < size:
                if not wanted():
                    raise NeighbourFailed("the state is not wanted any more")
                at += channel.receive_file(descriptor, at, size - at)
            if channel.hear().get("whole") is not True:
                raise NeighbourFailed("the state was overwritten while it was being sent")
            os.pwrite(descriptor, head, 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise NeighbourFailed(f"there is no room for it ({error.strerror})") from error
    return header


def wipe(slot: KeptSlot) -> None:
    """It holds nothing any more; its memory is used for the next."""
    try:
        descriptor = os.open(slot.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.pwrite(descriptor, bytes(HEADER), 0)
        finally:
            os.close(descriptor)
    except OSError:
        return
