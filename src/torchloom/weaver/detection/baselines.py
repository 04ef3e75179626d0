"""Keeps what detectors have learned of every job, so that a weaver that takes over need not learn it again.

Without it a failover would forget how long benign pauses last and how fast a job is, and would report too
much or too late. It is only a cache: what cannot be stored or read is learned again. One object for all
jobs, written by the weaver that leads; only what is small and worth keeping is in it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from torchloom.bus.protocol import Bus
from torchloom.core.detect.judge import Memory
from torchloom.core.detect.replicas import ReplicaMemory
from torchloom.errors import LoomError

log = logging.getLogger(__name__)

NAME = "baselines"
STEPS_KEPT = 128
VALUES_KEPT = 32
MOST_BYTES = 4 << 20


class Baseline(Struct, frozen=True):
    """What is known of one job."""

    generation: int
    memory: Memory


class Baselines:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._stored = b""

    async def load(self) -> dict[str, Baseline]:
        """By job; empty when there is nothing or it cannot be read."""
        try:
            data = await self._bus.get_object(NAME)
            return msgspec.msgpack.decode(data, type=dict[str, Baseline]) if data else {}
        except (LoomError, msgspec.DecodeError, RecursionError) as error:
            log.info("what was learned of jobs is learned again: %s", error)
            return {}

    async def save(self, known: Mapping[str, Baseline]) -> None:
        data = msgspec.msgpack.encode({job: _small(one) for job, one in known.items()})
        if data == self._stored or len(data) > MOST_BYTES:
            return
        try:
            await self._bus.put_object(NAME, data)
            self._stored = data
        except LoomError as error:
            log.info("what was learned of jobs is not stored now: %s", error)


def _small(one: Baseline) -> Baseline:
    """Pace, curves and pauses; faults in progress are detected again by the next weaver."""
    memory = one.memory
    kept = replace(
        memory,
        pace=replace(memory.pace, recent_s=memory.pace.recent_s[-STEPS_KEPT:]),
        curves=replace(memory.curves, values={k: v[-VALUES_KEPT:] for k, v in memory.curves.values.items()}),
        trigger=replace(memory.trigger, healthy=memory.trigger.healthy[-STEPS_KEPT:]),
        replicas=ReplicaMemory(),
        held={},
        slow=(),
    )
    return Baseline(one.generation, kept)
