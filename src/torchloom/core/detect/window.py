"""How detectors read windows: which operations are pairwise, what a wait is.

The records themselves are in model/windows.py; they are named here too, because every detector needs them.
"""

from __future__ import annotations

from collections.abc import Iterable

from torchloom.model.windows import (
    Collective,
    Completion,
    GroupPosition,
    ProcessFacts,
    RankWindow,
    StepTimes,
    WaitsOn,
)

__all__ = [
    "ANY_SOURCE",
    "PAIRWISE",
    "ROOTED",
    "Collective",
    "Completion",
    "GroupPosition",
    "ProcessFacts",
    "RankWindow",
    "StepTimes",
    "WaitsOn",
    "waited_ns",
]

ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
PAIRWISE = frozenset({"send", "recv"})
ANY_SOURCE = "recv (any source)"
"""A receive from whoever sends: it has no number and no partner."""
"""Operations of two ranks: their number counts the operations with this peer, not those of the group."""


def waited_ns(collectives: Iterable[Collective]) -> int:
    """How long a rank waited in the collectives of one step (in order of entry).

    Collectives that overlap are one wait, and its length is that of the last one: a rank that is late by t is
    late by t in each of them, and summing would count t as often as a model has buckets. Asynchronous ones
    that do not overlap are summed, though the rank may have computed meanwhile: no record shows it. A
    collective on a device counts from when the device came to it; where that is not known it is left out.
    """
    total = 0
    last: Collective | None = None
    for current in collectives:
        if not current.finished_ns or current.completion == "none" or not current.began_ns:
            continue
        if current.op == "send" and not current.waited:
            continue  # nobody waits for it: it ends when the receiver comes
        if last is not None and current.began_ns >= last.finished_ns:
            total += last.finished_ns - last.began_ns
        last = current
    return total + (last.finished_ns - last.began_ns if last is not None else 0)
