"""One turn of the core: the event being applied, the time it happened, and the effects it leads to."""

from __future__ import annotations

import zlib
from typing import TypeVar

from torchloom.model.effects import EffectBase, StartStore, StartWorkers, StopStore, StopWorkers
from torchloom.model.fleet import Fleet, Timer

E = TypeVar("E", StartStore, StopStore, StartWorkers, StopWorkers)


class Turn:
    """Handed to every handler; collects effects. Ids derive from the event, so a replay names them alike."""

    def __init__(self, fleet: Fleet, seq: int, now_ns: int, event_id: str) -> None:
        self.fleet = fleet
        self.seq = seq
        self.now_ns = now_ns
        self.event_id = event_id
        self.effects: list[StartStore | StopStore | StartWorkers | StopWorkers] = []

    @property
    def chance(self) -> float:
        """A number in [0, 1) that belongs to this event: random enough for jitter, the same on replay."""
        return zlib.crc32(self.event_id.encode()) / 2**32

    def next_effect_id(self) -> str:
        return f"e{self.seq}-{len(self.effects)}"

    def want(self, effect: E) -> None:
        """Ask for an effect; it stays in the outbox until an event closes it."""
        assert isinstance(effect, EffectBase) and effect.reason, "no effect without a reason"
        self.effects.append(effect)
        self.fleet.outbox[effect.id] = effect

    def close(self, effect_id: str) -> bool:
        """Take an effect out of the outbox; False when it was not open (a doubled or late result)."""
        return self.fleet.outbox.pop(effect_id, None) is not None

    def set_timer(self, timer_id: str, job: str, delay_s: float) -> None:
        at_ns = self.now_ns + int(delay_s * 1e9)
        self.fleet.timers[timer_id] = Timer(id=timer_id, at_ns=at_ns, job=job)

    def cancel_timers(self, job: str) -> None:
        for timer in [t for t in self.fleet.timers.values() if t.job == job]:
            del self.fleet.timers[timer.id]
