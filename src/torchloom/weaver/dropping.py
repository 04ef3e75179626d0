"""Drops the events that a verified snapshot stands for; core/history/trimming.py decides which and when.

Stores anchors, replays from the one before, records the outcome in the stream, and only then drops events.
Killed between any two of these, the next weaver continues: nothing is dropped that the stream does not call
needless, and not before two anchors were read whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from torchloom.bus.protocol import Bus
from torchloom.core.history.trimming import KEEP_BYTES, Next, next_step
from torchloom.errors import LoomError
from torchloom.model.events import SnapshotVerified
from torchloom.weaver.feed import apply_record
from torchloom.weaver.publisher import Publisher
from torchloom.weaver.snapshot import Snapshots, digest_of, pack

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
REPLAYED_AT_ONCE = 20
REST_S = 0.005
"""Between two pieces of a replay: it may take long, and must not slow what the weaver does meanwhile."""


class Trimming:
    def __init__(self, bus: Bus, stream: Publisher, snapshots: Snapshots, keep: int) -> None:
        self._bus, self._stream, self._snapshots, self._keep = bus, stream, snapshots, keep
        self._looked_at: tuple[int, int] = (-1, 0)
        """Epoch and last event of a look that found nothing to do, or of a try that failed."""
        self._read_bytes = 0
        """Of the events read since that look."""

    def read(self, size: int) -> None:
        """An event was read from the stream."""
        self._read_bytes += size

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                if self._stream.leads:
                    await self.tend()
            except LoomError as error:
                log.info("the history is not trimmed now: %s", error)

    async def tend(self) -> None:
        """Do what is due about the history, if anything is."""
        fleet, epoch = self._stream.fleet, self._stream.epoch
        few = fleet.seq - self._looked_at[1] < self._keep // 10
        if self._looked_at[0] == epoch and few and self._read_bytes < KEEP_BYTES // 4:
            return
        stored = await self._bus.stored()
        self._read_bytes = 0
        anchors = await self._snapshots.anchors(fleet.seq)
        step = next_step(fleet, anchors, stored.first_seq, self._keep, stored.bytes)
        if step is None:
            if self._looked_at[0] != epoch:
                await self._snapshots.forget_former()
            self._looked_at = (epoch, fleet.seq)
        elif step.what == "anchor":
            self._looked_at = (epoch, fleet.seq)  # if it fails it is not tried again at once: it is work
            await self._take_anchor(step, epoch)
        else:
            await self._drop(step)

    async def _take_anchor(self, step: Next, epoch: int) -> None:
        seq, packed = self._stream.fleet.seq, pack(self._stream.fleet)
        verified = step.upto > 0 and await self._verify(step.upto, seq, packed)
        if not self._stream.leads or self._stream.epoch != epoch:
            return
        log.info("a snapshot of event %d is stored: %s", seq, step.reason)
        if await self._snapshots.put_anchor(seq, packed) and verified:
            said = SnapshotVerified(epoch=epoch, base=step.upto, seq=seq, digest=digest_of(packed))
            await self._stream.say("snapshot", said)
            self._looked_at = (-1, 0)

    async def _verify(self, base: int, seq: int, packed: bytes) -> bool:
        """Whether a replay from the stored anchor gives the fleet that is to be stored."""
        fleet = await self._snapshots.anchor(base)
        if fleet is None or base >= seq:
            return False
        applied = 0
        async with contextlib.aclosing(self._bus.read(base)) as records:
            async for record in records:
                if record.seq > fleet.seq + 1 or record.seq > seq:
                    break
                apply_record(fleet, record)
                applied += 1
                if record.seq == seq:
                    break
                if applied % REPLAYED_AT_ONCE == 0:
                    await asyncio.sleep(REST_S)
        if fleet.seq == seq and pack(fleet) == packed:
            return True
        log.error(
            "a replay from event %d to %d does not give the fleet that this weaver has; nothing is dropped",
            base,
            seq,
        )
        return False

    async def _drop(self, step: Next) -> None:
        whole = [seq for seq in await self._snapshots.anchors(self._stream.fleet.seq) if seq >= step.upto]
        for seq in whole:
            if await self._snapshots.anchor(seq) is None:
                return  # it is damaged: the next look knows
        await self._bus.trim(step.upto)
        log.info("events up to %d were dropped: %s", step.upto, step.reason)
