"""Snapshots: the fleet as of one event, so that a new weaver need not replay from the beginning."""

from __future__ import annotations

import logging

from torchloom.bus.protocol import Bus
from torchloom.model.fleet import Fleet
from torchloom.wire import codec

log = logging.getLogger(__name__)

FORMAT = b"loom-fleet-5\n"
"""Changes whenever an older snapshot would be misread; a snapshot of another format is ignored."""
NAME = "snapshot"


async def save(bus: Bus, fleet: Fleet) -> None:
    await bus.put_object(NAME, FORMAT + codec.encode(fleet))


async def load(bus: Bus) -> Fleet:
    """The newest readable snapshot, or an empty fleet from which everything is replayed."""
    data = await bus.get_object(NAME)
    if data is None:
        return Fleet()
    if not data.startswith(FORMAT):
        log.warning("the snapshot has another format; replaying from the beginning")
        return Fleet()
    try:
        fleet = codec.decode_fleet(data[len(FORMAT) :])
    except codec.DecodeError as error:
        log.warning("the snapshot cannot be read (%s); replaying from the beginning", error)
        return Fleet()
    if fleet.seq > await bus.last_seq():
        log.warning("the snapshot is newer than the stream, which must be another one; starting empty")
        return Fleet()
    return fleet
