"""One turn of the core: the event being applied, the time it happened, and the effects it leads to."""

from __future__ import annotations

import zlib
from typing import TypeVar

from torchloom.model.effects import (
    Effect,
    EffectBase,
    InjectFault,
    MoveLighthouse,
    PostMail,
    ReleaseMemory,
    RemoveJobFiles,
    SeatReplica,
    ShareChange,
    StartRendezvous,
    StartWorkers,
    StopRendezvous,
    StopWorkers,
    TestDevice,
    WarmSpawner,
)
from torchloom.model.fleet import Fleet, Job
from torchloom.model.timers import Timer, TimerKind

E = TypeVar(
    "E",
    StartRendezvous,
    StopRendezvous,
    StartWorkers,
    StopWorkers,
    RemoveJobFiles,
    ReleaseMemory,
    WarmSpawner,
    InjectFault,
    PostMail,
    TestDevice,
    ShareChange,
    MoveLighthouse,
    SeatReplica,
)


class Turn:
    """Handed to every handler; collects effects. Ids derive from the event, so a replay names them alike."""

    def __init__(self, fleet: Fleet, seq: int, now_ns: int, event_id: str) -> None:
        self.fleet = fleet
        self.seq = seq
        self.now_ns = now_ns
        self.event_id = event_id
        self.effects: list[Effect] = []
        self._wanted = 0
        self.room_appeared = False
        """Slots became free or a node ready, so that waiting jobs are worth another look."""
        self.seats_changed = False
        """Slots were taken, a node went or a job ended, so that spare places are worth another look."""
        self.ended_operations: list[tuple[str, str]] = []
        """Job and id of operations whose outcome was recorded in this turn."""

    @property
    def chance(self) -> float:
        """A number in [0, 1) that belongs to this event: random enough for jitter, the same on replay."""
        return zlib.crc32(self.event_id.encode()) / 2**32

    def next_effect_id(self) -> str:
        return f"e{self.seq}-{self._wanted}"

    def want(self, effect: E) -> None:
        """Ask for an effect; it stays in the outbox until an event closes it."""
        assert isinstance(effect, EffectBase) and effect.reason, "no effect without a reason"
        self._wanted += 1
        self.effects.append(effect)
        self.fleet.outbox[effect.id] = effect
        for job in jobs_of(effect):
            self.fleet.open_by_job.setdefault(job, {})[effect.id] = None

    def close(self, effect_id: str) -> bool:
        """Take an effect out of the outbox; False when it was not open (a doubled or late result)."""
        effect = self.fleet.outbox.pop(effect_id, None)
        if effect is None:
            return False
        if effect in self.effects:  # something newer of this very turn took its place
            self.effects.remove(effect)
        for job in jobs_of(effect):
            open_now = self.fleet.open_by_job[job]
            del open_now[effect_id]
            if not open_now:
                del self.fleet.open_by_job[job]
        return True

    def open_of(self, job: str) -> list[Effect]:
        """Effects about a job that no event has closed yet, oldest first."""
        return [self.fleet.outbox[effect] for effect in self.fleet.open_by_job.get(job, ())]

    def set_timer(self, kind: TimerKind, job: Job, delay_s: float) -> None:
        self.set_timer_at(kind, job, self.now_ns + int(delay_s * 1e9))

    def set_timer_at(self, kind: TimerKind, job: Job, at_ns: int) -> None:
        timer = Timer(id=_timer_id(kind, job), kind=kind, at_ns=at_ns, job=job.id)
        self.fleet.timers[timer.id] = timer

    def timer(self, kind: TimerKind, job: Job) -> Timer | None:
        return self.fleet.timers.get(_timer_id(kind, job))

    def cancel_timers(self, job: Job) -> None:
        """All of its current generation; the one of steering outlives a generation."""
        for kind in TimerKind:
            if kind is not TimerKind.STEER:
                self.cancel_timer(kind, job)

    def cancel_timer(self, kind: TimerKind, job: Job) -> None:
        self.fleet.timers.pop(_timer_id(kind, job), None)


def _timer_id(kind: TimerKind, job: Job) -> str:
    return f"{kind}/{job.id}" if kind is TimerKind.STEER else f"{kind}/{job.id}/{job.generation}"


def jobs_of(effect: Effect) -> list[str]:
    """The jobs an effect is about: one, except when strays of several are ended together."""
    match effect:
        case StartRendezvous() | StopRendezvous():
            return [effect.store.job]
        case StartWorkers() | RemoveJobFiles() | ReleaseMemory() | WarmSpawner() | PostMail():
            return [effect.job]
        case ShareChange() | SeatReplica() | MoveLighthouse():
            return [effect.job]
        case StopWorkers() | InjectFault():
            return list(dict.fromkeys(ref.job for ref in effect.workers))
        case TestDevice():
            return []
