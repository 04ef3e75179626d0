"""Replays an incident: reads its events from the stream again and applies them to a fleet of its own.

Begins at the newest snapshot from before the incident. Changes nothing, and rests between pieces, so that it
does not slow what the weaver does meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

from torchloom.bus.protocol import Bus, Record
from torchloom.core.replaying import LEAD_NS, Replaying, began_ns
from torchloom.errors import Conflict, NotFound
from torchloom.model.fleet import Fleet
from torchloom.model.incidents import Incident
from torchloom.model.replayed import Replay
from torchloom.weaver.feed import believed, guarded
from torchloom.weaver.publisher import Publisher
from torchloom.weaver.snapshot import Snapshots

AT_ONCE = 20
REST_S = 0.002
"""Between two pieces."""


class Replays:
    def __init__(self, bus: Bus, stream: Publisher, snapshots: Snapshots) -> None:
        self._bus, self._stream, self._snapshots = bus, stream, snapshots
        self._one = asyncio.Lock()
        """A replay is work; several at once would only take longer."""

    async def replay(self, incident: str) -> Replay:
        found = self._stream.fleet.incidents.get(incident)
        if found is None:
            raise NotFound(f"There is no incident {incident[:64]!r}", hint="see `loom incidents`")
        if not found.job:
            raise Conflict(f"{incident} is an incident of the control plane; nothing was decided about it")
        async with self._one:
            return await self._replay(found, self._stream.fleet.seq)

    async def _replay(self, incident: Incident, upto: int) -> Replay:
        fleet = await self._snapshots.as_of(began_ns(incident) - LEAD_NS)
        first = await self._bus.first_seq()
        if fleet is None or fleet.seq >= upto:
            return Replay(incident=incident.id, job=incident.job, dropped_before=first)
        begins = fleet.seq + 1
        replaying = Replaying(fleet, incident)
        applied = 0
        async with contextlib.aclosing(self._bus.read(fleet.seq)) as records:
            async for record in records:
                if record.seq > fleet.seq + 1 and await self._bus.first_seq() > fleet.seq + 1:
                    break  # dropped while it was being read
                guarded(record, partial(_apply, replaying, fleet, record))
                if record.seq >= upto or replaying.over:
                    break
                applied += 1
                if applied % AT_ONCE == 0:
                    await asyncio.sleep(REST_S)
        return replaying.result(begins)


def _apply(replaying: Replaying, fleet: Fleet, record: Record) -> None:
    envelope = believed(record)
    if envelope is None:
        fleet.seq = record.seq
    else:
        replaying.apply(envelope, record.seq, record.at_ns)
