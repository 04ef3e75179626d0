"""Ranks that meet at the same number of a group with different operations: certain, as it cannot end well.

A difference is reported only when the operation is stuck or has failed: some backends accept uneven sizes,
and what ends well is nobody's fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from torchloom.core.detect import words
from torchloom.core.detect.joined import joined
from torchloom.core.detect.thresholds import Pace, StuckLimits, certain_report_s
from torchloom.core.detect.window import PAIRWISE, ROOTED, Collective, RankWindow
from torchloom.model.findings import Evidence, Finding

MAY_BE_UNEVEN = frozenset(
    {"all_to_all", "all_to_all_single", "all_gather", "reduce_scatter", "gather", "scatter", "barrier"}
)
NEVER_ALIKE = frozenset({"all_to_all", "all_to_all_single", "barrier"})
"""Of these the sizes say nothing, even if one was refused."""
TIE = 0.6
"""Confidence where as many say the one as the other."""
_ASKED = 32
Signature = tuple[str, int, str, int, str]
"""Operation, bytes (-1: may differ), type, root (-1: none) and reduction ("": none, or not known)."""


def desync(
    windows: Sequence[RankWindow], pace: Pace, limits: StuckLimits, refused: bool = False
) -> list[Finding]:
    """The desync, if there is one: what follows from it in other groups is not reported. `refused`: a backend
    gave up because of a size, so sizes are compared that may differ otherwise."""
    uneven = NEVER_ALIKE if refused else MAY_BE_UNEVEN
    stuck = {
        (c.group, c.group_seq)
        for w in windows
        for c in w.collectives
        if (c.under_way or c.failed) and c.exact and c.group_seq and c.op not in PAIRWISE
    }
    met: dict[tuple[str, int], list[tuple[RankWindow, Collective]]] = {}
    for window in windows:
        for c in window.collectives:
            place = (c.group, c.group_seq)
            if place in stuck and c.exact and c.op not in PAIRWISE:
                met.setdefault(place, []).append((window, c))
    found = [f for place in sorted(met) if (f := _judge(met[place], pace, limits, uneven)) is not None]
    found.sort(key=lambda f: -f.lasting_s)
    # What follows from the first concerns the same ranks; others that are odd elsewhere erred themselves.
    apart: list[Finding] = []
    named: set[int] = set()
    for one in found:
        if not named & set(one.ranks):
            apart.append(one)
            named |= set(one.ranks)
    return joined(apart)


def _signature(c: Collective, uneven: Collection[str]) -> Signature:
    root = c.peer if c.op in ROOTED and c.peer is not None else -1
    return c.op, -1 if c.op in uneven else c.bytes, c.dtype, root, c.reduction


def _judge(
    here: Sequence[tuple[RankWindow, Collective]], pace: Pace, limits: StuckLimits, uneven: Collection[str]
) -> Finding | None:
    if not all(c.reduction for _, c in here):  # not every recorder is shown it
        here = [(w, replace(c, reduction="")) for w, c in here]
    said = {w.rank: _signature(c, uneven) for w, c in here}
    votes = Counter(said.values())
    if len(votes) < 2:
        return None
    failed = any(c.failed for _, c in here)
    lasting_s = max((w.age_s(c) for w, c in here if c.under_way), default=0.0)
    report_s = certain_report_s(pace, limits)
    if not failed and lasting_s < report_s:
        return None
    (usual, most), (_, second) = votes.most_common(2)
    tie = most == second
    odd = [(w, c) for w, c in here if tie or said[w.rank] != usual]
    example = next(c for w, c in here if said[w.rank] == usual)
    others = [w.rank for w, _ in here if said[w.rank] == usual]
    names = words.whom([w for w, _ in odd])
    if tie:
        sides = "; ".join(
            f"{words.ranks_text(w.rank for w, _ in here if said[w.rank] == s)}: {_say(s)}"
            for s in sorted(votes)
        )
        sentence = f"ranks do not agree about #{example.group_seq} of group {example.group}: {sides}"
    else:
        sentence = (
            f"{names} called {_say(said[odd[0][0].rank])} as #{example.group_seq} of group {example.group} "
            f"where {words.ranks_text(others)} called {_say(usual)}"
        )
    return Finding(
        kind="desync",
        ranks=tuple(sorted(w.rank for w, _ in odd)),
        node=words.node_of(w for w, _ in odd),
        sentence=sentence,
        confidence=TIE if tie else 0.99,
        certain=True,
        certainty="operations that differ can never match",
        may_act=True,
        lasting_s=lasting_s,
        waiting=tuple(sorted(w.rank for w, c in here if c.under_way)),
        evidence=tuple(Evidence(w.rank, _say(said[w.rank])) for w, _ in odd[:32]),
        ask=tuple(sorted(w.rank for w, _ in here))[:_ASKED],
        inputs={"report_s": report_s, "group_seq": example.group_seq},
    )


def _say(signature: Signature) -> str:
    op, size, dtype, root, reduction = signature
    text = f"{op} {reduction}".strip() + (f" of {size} bytes" if size >= 0 else "")
    kind = "" if dtype == "none" else dtype  # a barrier has none
    return f"{text} {kind}".strip() + (f" with root {root}" if root >= 0 else "")
