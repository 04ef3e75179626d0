"""Several culprits of one kind at different places: one finding that names all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from torchloom.core.detect import words
from torchloom.core.detect.certainty import ended
from torchloom.core.detect.window import RankWindow
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


def also_stopped(found: list[Finding], by_rank: Mapping[int, RankWindow]) -> list[Finding]:
    """The first finding, with all other ranks that are stopped: nobody may miss them yet, but once the others
    come, these do not. They are culprits beside others that will certainly not come."""
    named = {rank for one in found for rank in one.ranks}
    stopped = sorted(r for r, w in by_rank.items() if r not in named and ended(w) and not w.dead)
    if not found or not stopped:
        return found
    first = found[0]
    are = "is" if len(stopped) == 1 else "are"
    sentence = f"{first.sentence}; {words.ranks_text(stopped)} {are} stopped (SIGSTOP) as well"
    if not first.certain:
        return [replace(first, sentence=sentence), *found[1:]]
    ranks = tuple(sorted({*first.ranks, *stopped}))
    whole = replace(
        first,
        ranks=ranks,
        node=words.node_of(by_rank[r] for r in ranks),
        sentence=sentence,
        waiting=tuple(r for r in first.waiting if r not in stopped),
        ask=ranks[:_SHOWN],
    )
    return [whole, *found[1:]]
