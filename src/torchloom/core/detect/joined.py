"""Several certain findings of one kind at different places: one finding that names all culprits."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from torchloom.model.findings import Finding

_SHOWN = 32
_SAID = 4


def joined(found: Sequence[Finding]) -> list[Finding]:
    """Certain culprits at different places hold the job up together, and all must be named. The most certain
    and most costly comes first."""
    order = sorted(found, key=lambda f: (-f.certain, -len(f.waiting), -f.lasting_s))
    made: list[Finding] = []
    for kind in dict.fromkeys(f.kind for f in order):
        sure = [f for f in order if f.kind == kind and f.certain]
        made += (
            [_whole(sure), *(f for f in order if f.kind == kind and not f.certain)]
            if sure
            else [f for f in order if f.kind == kind]
        )
    return sorted(made, key=lambda f: (-f.certain, -len(f.waiting), -f.lasting_s))


def _whole(sure: Sequence[Finding]) -> Finding:
    first = sure[0]
    if len(sure) == 1:
        return first
    ranks = sorted({r for f in sure for r in f.ranks})
    return replace(
        first,
        ranks=tuple(ranks),
        node=first.node if all(f.node == first.node for f in sure) else "",
        sentence="; ".join([first.sentence, *(f"also {f.sentence}" for f in sure[1:_SAID])]),
        confidence=min(f.confidence for f in sure),
        waiting=tuple(sorted({r for f in sure for r in f.waiting} - set(ranks))),
        ask=tuple(ranks[:_SHOWN]),
        evidence=tuple(e for f in sure for e in f.evidence)[:_SHOWN],
    )
