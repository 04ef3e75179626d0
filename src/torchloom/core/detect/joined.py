"""Several culprits of one kind at different places: one finding that names all of them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from torchloom.core.detect import words
from torchloom.core.detect.board import HALTED, STOPPED, WindowBoard
from torchloom.core.detect.certainty import ended
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Finding

_SHOWN = 32
_SAID = 4
_SUSPENDED_LOOKS = 3
"""Of the newest ones, in which a rank was found stopped: it was suspended, and not only looked into."""


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


def also_stopped(found: list[Finding], windows: Sequence[RankWindow]) -> list[Finding]:
    """The first finding, with all other ranks that are stopped: nobody may miss them yet, but once the others
    come, these do not. They are culprits beside others that will certainly not come."""
    halted = WindowBoard.of(windows).with_mark(STOPPED)
    if not found or not halted:
        return found
    named = {rank for one in found for rank in one.ranks}
    stopped = sorted(w.rank for w in halted if w.rank not in named and ended(w) and not w.dead)
    if not stopped:
        return found
    first = found[0]
    are = "is" if len(stopped) == 1 else "are"
    sentence = f"{first.sentence}; {words.ranks_text(stopped)} {are} stopped (SIGSTOP) as well"
    if not first.certain:
        return [replace(first, sentence=sentence), *found[1:]]
    these = {*first.ranks, *stopped}
    ranks = tuple(sorted(these))
    whole = replace(
        first,
        ranks=ranks,
        node=words.node_of(map(WindowBoard.of(windows).by_rank().__getitem__, ranks)),
        sentence=sentence,
        waiting=tuple(r for r in first.waiting if r not in stopped),
        ask=ranks[:_SHOWN],
    )
    return [whole, *found[1:]]


def while_others_return(found: Sequence[Finding], windows: Sequence[RankWindow]) -> list[Finding]:
    """Somebody who suspended a job lets its ranks continue one after the other. As long as other ranks were
    stopped lately as well, one that is still stopped may be the next, and nothing is certain."""
    board = WindowBoard.of(windows)
    halted = {board.ranks[row] for row in board.marked(STOPPED)}
    if not halted or not any(f.certain for f in found):
        return list(found)
    lately = board.with_mark(HALTED)
    returned = any(w.process.stops >= _SUSPENDED_LOOKS for w in lately if w.rank not in halted and not w.dead)
    if not returned:
        return list(found)
    why = "other ranks were stopped too and have continued, so it may follow"
    return [
        replace(f, certain=False, may_act=False, confidence=min(f.confidence, 0.9), certainty=why)
        if f.certain and halted.issuperset(f.ranks)
        else f
        for f in found
    ]
