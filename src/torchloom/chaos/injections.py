"""Seeded series of faults for a real job: which fault, when, on which rank, how severe. Injects nothing.

The same seed gives the same series for a job of the same size, so that a run that found something can be
repeated. What a fault is and which numbers it takes is said in core/injection.py.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from torchloom.core.injection import KINDS, check
from torchloom.model.faults import Fault, FaultKind, FaultPlace

USUAL: tuple[FaultKind, ...] = (
    "kill",
    "stop",
    "exit",
    "hang",
    "gil-hold",
    "slow",
    "data-slow",
    "contention",
    "device-error",
    "mismatch",
    "agent-kill",
    "weaver-kill",
)
"""Faults that a job should survive, or at least report, without human help."""
_AMOUNTS: dict[FaultKind, tuple[float, ...]] = {
    "exit": (1, 17, 137),
    "slow": (1.3, 1.5, 2.0, 3.0),
    "data-slow": (10, 30, 100),
    "contention": (1, 2, 4),
    "cpu-quota": (10, 25, 50),
    "gradient": (1e2, 1e4),
    "memory": (64, 256),
    "slow-link": (1, 10),
    "slow-sender": (1, 10),
    "slow-receiver": (1, 10),
}
_SHORTEST_S, _LONGEST_S = 3.0, 30.0
_PLACES: tuple[FaultPlace, ...] = ("step", "data", "backward")


@dataclass(frozen=True, slots=True)
class Injection:
    after_s: float
    """Since the series began."""
    fault: Fault
    ranks: tuple[int, ...]

    def describe(self) -> str:
        """`kill into rank 1`, with its number and its end."""
        known, fault = KINDS[self.fault.kind], self.fault
        text = f"{fault.kind} into rank {', '.join(map(str, self.ranks))}"
        if known.amount and fault.amount is not None:
            text += f", {known.amount}: {fault.amount:g}"
        if fault.where != "step":
            text += f", in {fault.where}"
        return text + (f", for {fault.duration_s:.0f} s" if fault.duration_s else "")


def series(
    seed: int, world: int, lasting_s: float, every_s: float, kinds: Sequence[FaultKind] = USUAL
) -> list[Injection]:
    """Faults for `lasting_s`, one about every `every_s`. Leaves out faults that need more ranks."""
    chance = random.Random(f"{seed} {world}")
    possible = [kind for kind in kinds if world > 1 or not _needs_others(kind)]
    found: list[Injection] = []
    now_s = chance.uniform(0, every_s)
    while possible and now_s < lasting_s:
        found.append(_draw(chance, chance.choice(possible), world, now_s))
        now_s += chance.uniform(0.5, 1.5) * every_s
    return found


def _needs_others(kind: FaultKind) -> bool:
    known = KINDS[kind]
    return known.everybody or known.has_peer or kind == "slow-receiver"


def _draw(chance: random.Random, kind: FaultKind, world: int, after_s: float) -> Injection:
    known = KINDS[kind]
    ranks = tuple(range(world)) if known.everybody else (chance.randrange(world),)
    others = [rank for rank in range(world) if rank not in ranks]
    fault = Fault(
        kind=kind,
        amount=chance.choice(_AMOUNTS[kind]) if kind in _AMOUNTS else None,
        duration_s=round(chance.uniform(_SHORTEST_S, _LONGEST_S), 1) if known.lasting else 0.0,
        where=chance.choice(_PLACES) if kind == "hang" else "step",
        seed=chance.randrange(2**32),
        peer=chance.choice(others) if known.has_peer else None,
    )
    check(fault, ranks, world)
    return Injection(after_s, fault, ranks)
