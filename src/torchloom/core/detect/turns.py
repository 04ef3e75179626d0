"""Two or three slow ranks that flicker: now one is slow, now the other, now both.

Each look finds some of them, and no two looks agree; so what the newest looks found is remembered, and if it
is always some of the same few ranks, they are one finding. Pure: memory in, memory out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from torchloom.core.detect import words
from torchloom.core.detect.window import RankWindow
from torchloom.model.finding_kinds import FindingKind
from torchloom.model.findings import Finding

LOOKS = 24
"""Newest looks that are remembered …"""
ENOUGH = 8
"""… and how many there must be …"""
NAMED = 0.6
"""… since the first of them, of which so many must have named some of them …"""
TIMES = 2
"""… and each of them so often …"""
CHANGES = 3
"""… and so often it must have changed whom: one that is slow after another had been is no flicker."""
MOST = 3
_KINDS: frozenset[FindingKind] = frozenset({"compute-slow", "data-slow", "host-contention"})

Turns = tuple[tuple[int, ...], ...]
"""By look, the ranks that it found slow."""


def in_turn(
    found: Sequence[Finding], windows: Sequence[RankWindow], turns: Turns, before: Sequence[Finding]
) -> tuple[Turns, list[Finding]]:
    """What a look has found, with ranks that flicker as one finding. `before` is what the last look found."""
    slow = [f for f in found if f.kind in _KINDS and f.ranks]
    # Of many, the first say enough: they are a set, and no flicker.
    turns = (*turns, tuple(sorted({rank for f in slow for rank in f.ranks})[: MOST + 1]))[-LOOKS:]
    ranks = _flickering(turns, len(windows))
    like = next((f for f in (*slow, *before) if f.kind in _KINDS and f.ranks), None)
    if not ranks or like is None:
        return turns, list(found)
    late = [w for w in windows if w.rank in ranks]
    ratio = like.inputs.get("ratio")
    longer = f" take {float(ratio):.2f}× the time of their peers" if isinstance(ratio, float) else " are slow"
    said = f"{words.whom(late)}{longer}, now one of them and now another, and the others wait"
    together = replace(like, ranks=ranks, node=words.node_of(late), sentence=said, evidence=())
    rest = [f for f in found if f not in slow and f.kind != "data-imbalance"]
    return turns, [together, *rest]


def _flickering(turns: Turns, size: int) -> tuple[int, ...]:
    """The ranks that take turns; none if it is one and the same, or chance."""
    named = [some for some in turns if some]
    since = next((at for at, some in enumerate(turns) if some), len(turns))
    if len(turns) - since < ENOUGH or len(named) < NAMED * (len(turns) - since):
        return ()
    ranks = tuple(sorted({rank for some in named for rank in some}))
    if not 2 <= len(ranks) <= min(MOST, size // 2):
        return ()
    often = all(sum(rank in some for some in named) >= TIMES for rank in ranks)
    changes = sum(some != other for some, other in pairwise(named))
    return ranks if often and changes >= CHANGES else ()
