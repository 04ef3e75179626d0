"""Ranks that meet at the same number of a group with different operations: certain, as it cannot end well.

A difference is reported only when the operation is stuck or has failed: some backends accept uneven sizes,
and what ends well is nobody's fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from torchloom.core.detect import words
from torchloom.core.detect.board import WindowBoard
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
    board = WindowBoard.of(windows)
    stuck: set[tuple[str, int]] = set()
    met: dict[tuple[str, int], list[tuple[int, Collective]]] = {}
    for row, inside in board.busy():
        for c in inside:
            if c.exact and c.op not in PAIRWISE:
                place = c.group, c.group_seq
                met.setdefault(place, []).append((row, c))
                if place not in stuck and (c.under_way or c.failed) and c.group_seq:
                    stuck.add(place)
    found = []
    for place in sorted(stuck):
        if _differ([c for _, c in met[place]]):  # otherwise no window is made, of thousands of ranks
            here = [(board[row], c) for row, c in met[place]]
            if (one := _judge(here, pace, limits, uneven)) is not None:
                found.append(one)
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


def _differ(here: Sequence[Collective]) -> bool:
    return len({(c.op, c.bytes, c.peer, c.dtype, c.reduction) for c in here}) > 1


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
        sentence = f"ranks do not agree about #{example.group_seq}{words.of_group(example.group)}: {sides}"
        sentence += _departed(here, said, uneven)
    else:
        sentence = (
            f"{names} called {_say(said[odd[0][0].rank])} as "
            f"#{example.group_seq}{words.of_group(example.group)} where "
            f"{words.ranks_text(others)} called {_say(usual)}"
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


def _departed(
    here: Sequence[tuple[RankWindow, Collective]], said: Mapping[int, Signature], uneven: Collection[str]
) -> str:
    """Which of two sides did not do what the finished operations before repeat. That is no proof: at the end
    of an epoch the one that continues as before is wrong. So it is said, and nobody is blamed for it."""
    due = {_due(w, c, uneven) for w, c in here}
    if len(due) != 1 or None in due:
        return ""
    (usual,) = due
    kept = [w.rank for w, _ in here if said[w.rank] == usual]
    left = [w.rank for w, _ in here if said[w.rank] != usual]
    if not kept or not left:
        return ""
    continues, departs = ("s" if len(some) == 1 else "" for some in (kept, left))
    return (
        f"; {words.ranks_text(kept)} continue{continues} the order of the operations before, and "
        f"{words.ranks_text(left)} depart{departs} from it"
    )


def _due(window: RankWindow, at: Collective, uneven: Collection[str]) -> Signature | None:
    """What would come next if this rank's operations of the group repeated once more; None if they do not."""
    before: list[Signature] = []
    for c in reversed(window.collectives):
        if c.group == at.group and c.finished_ns and c.group_seq == at.group_seq - len(before) - 1:
            before.append(_signature(c, uneven))  # the newest first
    for period in range(1, len(before) // 2 + 1):
        if all(a == b for a, b in zip(before, before[period:], strict=False)):
            return before[period - 1]
    return None


def _say(signature: Signature) -> str:
    op, size, dtype, root, reduction = signature
    text = f"{op} {reduction}".strip() + (f" of {size} bytes" if size >= 0 else "")
    kind = "" if dtype == "none" else dtype  # a barrier has none
    return f"{text} {kind}".strip() + (f" with root {root}" if root >= 0 else "")
