"""Collectives that ended with an error in a job that continues. Where the job stalls or a rank has died, that
explains the error and is reported instead.

A program may expect errors (time limits, groups that are made anew), so this is only ever reported, once and
then at most every ten minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from torchloom.core.detect import words
from torchloom.core.detect.board import FAILED, WindowBoard
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Finding

SETTLES_S = 4.0
"""After an error it takes a moment until a death or a stall shows."""
AGAIN_S = 600.0
_ENDING = "ending"


class Reported(Struct, frozen=True, array_like=True):
    """What was reported of one rank."""

    count: int
    at_ns: int
    """By the clock of its host."""


def failed_collectives(
    windows: Sequence[RankWindow], known: Mapping[int, Reported], quiet: bool
) -> tuple[dict[int, Reported], list[Finding]]:
    """New errors of ranks that have made a step since. `quiet`: something else explains them."""
    board = WindowBoard.of(windows)
    if not board.marked(FAILED):
        return dict(known), []
    odd = [w for w in board.with_mark(FAILED) if w.quorum is None and w.phase != _ENDING]
    found = [w for w in odd if _is_new(w, known.get(w.rank))]
    if quiet or not any(_continues(w) for w in found):
        return dict(known), []
    now = dict(known)
    for window in found:
        assert window.failed is not None
        now[window.rank] = Reported(window.failed.count, window.taken_ns)
    first = found[0]
    assert first.failed is not None
    count = sum(w.failed.count for w in found if w.failed is not None)
    error = next(
        (w.accelerator.error for w in found if w.accelerator is not None and w.accelerator.error), ""
    )
    more = f"; {count} have failed by now" if count > len(found) else ""
    return now, [
        Finding(
            kind="collective-failed",
            ranks=tuple(sorted(w.rank for w in found)),
            node=words.node_of(found),
            sentence=f"{first.failed.what} failed on {words.whom(found)}"
            f"{f' ({error})' if error else ''}, and the job continues{more}",
            confidence=0.9,
            certainty="the program may have expected it",
            inputs={"step": max(w.failed.step for w in found if w.failed is not None), "count": count},
        )
    ]


def _is_new(window: RankWindow, reported: Reported | None) -> bool:
    failed = window.failed
    if failed is None:
        return False
    if reported is None:
        return True
    return failed.count > reported.count and window.taken_ns - reported.at_ns >= AGAIN_S * 1e9


def _continues(window: RankWindow) -> bool:
    failed = window.failed
    if failed is None or window.taken_ns - failed.ended_ns < SETTLES_S * 1e9:
        return False
    return window.steps_done > failed.step + 1 and window.idle_s < SETTLES_S
