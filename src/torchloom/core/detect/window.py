"""How detectors read windows: which operations are pairwise, what a wait is, who may be compared with whom.

The records themselves are in model/windows.py; they are named here too, because every detector needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    "PAIRWISE",
    "ROOTED",
    "Collective",
    "Completion",
    "GroupPosition",
    "ProcessFacts",
    "RankWindow",
    "StepTimes",
    "WaitsOn",
    "by_role",
    "waited_ns",
]

ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
PAIRWISE = frozenset({"send", "recv"})
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


def by_role(windows: Sequence[RankWindow]) -> dict[str, list[RankWindow]]:
    """Ranks that may be compared with each other, by their reported role or else by the shape of their work.

    The shape is which sizes of groups they use and about how often a step: ranks that differ in it cannot be
    doing the same thing. Different middle stages of a pipeline look alike, so a script should report roles.
    """
    found: dict[str, list[RankWindow]] = {}
    shapes: list[tuple[str, _Shape]] = []
    same: dict[tuple[object, ...], str] = {}
    for window in windows:
        role = window.role
        if not role:
            use = window.steps_done, *[(g.size, g.entered) for g in window.groups]
            role = same.get(use, "")  # nearly all ranks of a large job are like one before
        if not role:
            shape = _shape(window)
            role = next((name for name, other in shapes if _alike(shape, other)), "")
            if not role:
                role = f"shape {len(shapes) + 1}"
                shapes.append((role, shape))
            same[use] = role
        found.setdefault(role, []).append(window)
    return found


_Shape = tuple[tuple[int, float], ...]


def _shape(window: RankWindow) -> _Shape:
    steps = max(1, window.steps_done)
    return tuple(sorted((g.size, g.entered / steps) for g in window.groups))


def _alike(one: _Shape, other: _Shape) -> bool:
    """Counts a step differ a little between ranks that are looked at within a step of each other."""
    return len(one) == len(other) and all(
        a == b and abs(x - y) <= 0.5 + 0.1 * max(x, y) for (a, x), (b, y) in zip(one, other, strict=True)
    )
