"""Ranks whose collectives succeed and yet do not mean the same: another root, or another reduction.

Nothing is stuck and nothing fails: most backends do not compare what ranks ask for, and each rank continues
with a different result. What is special about a collective is in a window (`StepTimes.marked`), so ranks
can be compared at the same number of the same group, or at the same place of the same step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from torchloom.core.detect import words
from torchloom.core.detect.board import WindowBoard
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Evidence, Finding
from torchloom.model.windows import StepTimes

_STEPS = 16
_NUMBERS = 8
"""Newest steps and operations of a group that are compared."""
_SAMPLED = 2
"""Steps that must differ where the recorder numbers no operations."""


def other_operations(windows: Sequence[RankWindow]) -> list[Finding]:
    """The newest operation about which the ranks of a group do not agree, if there is one."""
    if not WindowBoard.of(windows).special:
        return []  # the usual case costs next to nothing
    groups: dict[str, tuple[int, list[tuple[RankWindow, int]]]] = {}
    for window in windows:
        for place, group in enumerate(window.groups):
            groups.setdefault(group.name, (group.size, []))[1].append((window, place))
    found = []
    for name, (size, members) in groups.items():
        if len(members) == size > 1 and (finding := _compare(name, members) or _sampled(name, members)):
            found.append(finding)
    return found[:1]


def _compare(name: str, members: Sequence[tuple[RankWindow, int]]) -> Finding | None:
    covered, marked = [], {}
    for window, place in members:
        read = _read(window, place)
        if not read or any(s.marked is None for _, s in read):
            return None
        covered.append([numbers for numbers, _ in read])
        marked[window.rank] = {n: said for _, s in read for at, n, said in s.marked or () if at == place}
    numbers = sorted(
        (
            n
            for n in {n for mine in marked.values() for n in mine}
            if all(any(n in some for some in mine) for mine in covered)
        ),
        reverse=True,
    )
    for number in numbers[:_NUMBERS]:
        said = {rank: mine.get(number, "") for rank, mine in marked.items()}
        if len(set(said.values())) > 1:
            return _say(name, number, said, [w for w, _ in members])
    return None


def _read(window: RankWindow, place: int) -> list[tuple[range, StepTimes]]:
    """The newest steps in which this rank used the group, each with the numbers of its operations there. An
    agent leaves out steps that it could not read whole: where a step is missing, the numbers of the next one
    are not known."""
    found: list[tuple[range, StepTimes]] = []
    before: StepTimes | None = None
    reached: int | None = None
    for one in window.steps[-_STEPS:]:
        if before is not None and one.step != before.step + 1:
            reached = None
        before = one
        made = next((made for at, made in one.made if at == place), None)
        if made is None:
            continue
        if reached is not None:
            found.append((range(reached + 1, made + 1), one))
        reached = made
    return found


def _sampled(name: str, members: Sequence[tuple[RankWindow, int]]) -> Finding | None:
    """The same where numbers are not exact: operations of the same step, by their place in it, in steps that
    were recorded by all and had as many of them everywhere. One such step may be chance: a rank may count its
    steps from another one on."""
    by_rank: dict[int, dict[int, tuple[int, dict[int, str]]]] = {}
    for window, place in members:
        by_rank[window.rank] = {
            s.step: (count, {-n: said for at, n, said in s.marked if at == place and n < 0})
            for s in window.steps
            for at, count in s.sampled
            if at == place and s.marked is not None
        }
    common = set.intersection(*(set(steps) for steps in by_rank.values()))
    odd: list[tuple[int, int, dict[int, str]]] = []
    for step in sorted(common, reverse=True):
        if len({steps[step][0] for steps in by_rank.values()}) != 1:
            continue
        for nth in sorted({n for steps in by_rank.values() for n in steps[step][1]}):
            said = {rank: steps[step][1].get(nth, "") for rank, steps in by_rank.items()}
            if len(set(said.values())) > 1:
                odd.append((step, nth, said))
                break
    if len(odd) < _SAMPLED:
        return None
    step, nth, said = odd[0]
    finding = _say(name, nth, said, [w for w, _ in members], f"collective {nth} of step {step}")
    return replace(
        finding,
        confidence=min(finding.confidence, 0.8),
        certain=False,
        certainty=f"{len(odd)} of {len(common)} recorded steps differ; the recorder samples",
    )


def _say(
    name: str, number: int, said: Mapping[int, str], windows: Sequence[RankWindow], where: str = ""
) -> Finding:
    at = f"{where or f'#{number}'}{words.of_group(name)}"
    votes = Counter(said.values())
    (usual, most), (_, second) = votes.most_common(2)
    odd = {r: text for r, text in said.items() if most == second or text != usual}
    blamed = [w for w in windows if w.rank in odd]
    others = words.ranks_text(r for r in said if r not in odd)
    each = "; ".join(
        f"{words.ranks_text(r for r in odd if odd[r] == text)}: {text or 'root 0, or a sum'}"
        for text in sorted(set(odd.values()), reverse=True)
    )
    if most == second:
        sentence = f"ranks do not agree about {at}: {each}"
    else:
        theirs = usual or "root 0, or a sum"
        sentence = f"not all ranks do the same as {at}: {each}; {others}: {theirs}"
    return Finding(
        kind="divergence",
        ranks=tuple(sorted(odd)),
        node=words.node_of(blamed),
        sentence=f"{sentence}; it ended, with results that differ",
        confidence=0.6 if most == second else 0.97,
        certain=True,
        certainty="all ranks must name the same root and the same reduction",
        evidence=tuple(Evidence(r, text or "root 0, or a sum") for r, text in sorted(odd.items())[:16]),
        ask=tuple(sorted(odd))[:16],
        inputs={"step": max(w.steps_done for w in windows), "group_seq": number},
    )
