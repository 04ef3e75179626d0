"""Keeps the history of every job (core/history): samples once a second, stores it, continues it later.

Every weaver samples, as all of them receive telemetry; the one that leads stores. What was not stored is lost
with the service, at most SAVE_EVERY_S of it. Nothing of it is in the event stream, and nothing is decided by
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from torchloom.bus.protocol import Bus
from torchloom.core.config.settings import HYPERPARAMETERS, KnownSettings
from torchloom.core.history.job_history import WIDE, History, PackedHistory, restored
from torchloom.errors import LoomError
from torchloom.model.fleet import Fleet, Job
from torchloom.model.messages import WorkerPulse
from torchloom.model.windows import RankWindow
from torchloom.weaver.knowledge import known_of

log = logging.getLogger(__name__)

SAMPLE_EVERY_S = 1.0
WIDE_SAMPLE_EVERY_S = 5.0
"""Of a job with more ranks than WIDE."""
SAVE_EVERY_S = 20.0
KEPT_ENDED = 64
"""Ended jobs whose history is in memory; that of others is read on request."""


@dataclass
class _Kept:
    history: History
    changed: bool = False
    sampled_s: float = 0.0
    saved_s: float = 0.0
    settings: tuple[str, str] = ("", "")
    """What the numbers below were made from: to read it takes longer than to compare it."""
    numbers: dict[str, float] = field(default_factory=dict)


class Histories:
    def __init__(
        self,
        bus: Bus,
        fleet: Callable[[], Fleet],
        leads: Callable[[], bool],
        pulses: Callable[[str], dict[int, WorkerPulse]],
        windows: Callable[[str], list[RankWindow]],
    ) -> None:
        self._bus, self._fleet, self._leads = bus, fleet, leads
        self._pulses, self._windows = pulses, windows
        self._jobs: dict[str, _Kept] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_EVERY_S)
            for job in list(self._fleet().jobs.values()):
                try:
                    await self._tend(job)
                except Exception:  # the service's top level: a picture of the past must not end the service
                    log.exception("the history of %s is not kept", job.id)
            self._forget()

    async def _tend(self, job: Job) -> None:
        if not job.ended:
            await self._sample(job, time.time())
        kept, now_s = self._jobs.get(job.id), asyncio.get_running_loop().time()
        if kept is None or not kept.changed or not self._leads():
            return
        if job.ended or now_s - kept.saved_s >= SAVE_EVERY_S:
            kept.saved_s = now_s
            await self._save(job.id, kept)

    async def save_all(self) -> None:
        """Before a clean end."""
        for job, kept in self._jobs.items():
            if kept.changed:
                await self._save(job, kept)

    async def of(self, job: str) -> History:
        return (await self._kept(job)).history

    async def forget(self, job: str) -> None:
        """The job was deleted; another one may get its name."""
        self._jobs.pop(job, None)
        with contextlib.suppress(LoomError):
            await self._bus.delete_object(_name(job))

    async def _sample(self, job: Job, now_s: float) -> None:
        pulses = self._pulses(job.id)
        if not pulses:
            return
        kept = await self._kept(job.id)
        every_s = SAMPLE_EVERY_S if len(job.workers) <= WIDE else WIDE_SAMPLE_EVERY_S
        if abs(now_s - kept.sampled_s) < 0.9 * every_s:
            return
        kept.sampled_s = now_s
        numbers = {**_progress(pulses), **self._settings(kept, pulses)}
        await asyncio.sleep(0)
        windows = self._windows(job.id)
        for _ in kept.history.recorded(now_s, job.generation, len(job.workers), pulses, windows, numbers):
            await asyncio.sleep(0)
        kept.changed = True

    def _settings(self, kept: _Kept, pulses: Mapping[int, WorkerPulse]) -> dict[str, float]:
        told = next((p for _, p in sorted(pulses.items()) if p.settings), None)
        if told is not None and (told.settings, told.hyperparameters) != kept.settings:
            kept.settings = (told.settings, told.hyperparameters)
            known = known_of(pulses)
            kept.numbers = numbers_of(known) if known is not None else {}
        return kept.numbers

    async def _kept(self, job: str) -> _Kept:
        known = self._jobs.get(job)
        if known is None:
            found = await self._load(job)
            known = self._jobs.setdefault(job, _Kept(found))
        return known

    async def _load(self, job: str) -> History:
        try:
            data = await self._bus.get_object(_name(job))
            if not data:
                return History()
            return restored(msgspec.msgpack.decode(zlib.decompress(data), type=PackedHistory))
        except (LoomError, msgspec.DecodeError, zlib.error, ValueError, RecursionError) as error:
            log.info("the history of %s cannot be read and begins anew: %s", job, error)
            return History()

    async def _save(self, job: str, kept: _Kept) -> None:
        packed = kept.history.pack()  # at once, because the history keeps changing
        kept.changed = False
        try:
            data = await asyncio.to_thread(lambda: zlib.compress(msgspec.msgpack.encode(packed), 1))
            await self._bus.put_object(_name(job), data)
        except LoomError as error:
            kept.changed = True
            log.info("the history of %s is not stored now: %s", job, error)

    def _forget(self) -> None:
        jobs = self._fleet().jobs
        ended = [
            id
            for id, kept in self._jobs.items()
            if (j := jobs.get(id)) is None or (j.ended and not kept.changed)
        ]
        for id in ended[: max(0, len(ended) - KEPT_ENDED)]:
            del self._jobs[id]


def _name(job: str) -> str:
    return f"history.{job}"


def _progress(pulses: Mapping[int, WorkerPulse]) -> dict[str, float]:
    steps = [p.training_step if p.training_step is not None else p.steps for p in pulses.values()]
    slowest = max(p.step_s for p in pulses.values())
    moving = min(p.idle_s for p in pulses.values()) < max(5.0, 10 * slowest)
    return {"step": float(min(steps)), "steps_per_s": 1.0 / slowest if slowest > 0 and moving else 0.0}


def numbers_of(known: KnownSettings) -> dict[str, float]:
    """Settings that are one number, by their address."""
    found: dict[str, float] = {}
    for number, optimizer in enumerate(known.optimizers):
        for place, group in enumerate(optimizer):
            for name, value in group.items():
                if name in HYPERPARAMETERS and _is_number(value):
                    first = "" if number == 0 else f"optimizer{number}."
                    last = "" if len(optimizer) == 1 else f"@{place}"
                    found[f"setting:{first}{name}{last}"] = float(value)
    for name, declared in known.values.items():
        if isinstance(declared, (int, float)) and _is_number(declared):
            found[f"setting:{name}"] = float(declared)
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
