"""Operations that all ranks have entered and none, or not all, have finished.

A rank is held inside (stopped, or under a debugger), its device has not reached the operation (devices.py),
one rank has not finished what most have left, or the operation itself stalls, which blames nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torchloom.core.detect import devices, still, words
from torchloom.core.detect import graph as graphs
from torchloom.core.detect.certainty import certainty, ended, may_act
from torchloom.core.detect.graph import CollectiveWait, Graph
from torchloom.core.detect.thresholds import Limit, Pace, StuckLimits, certain_report_s, limit
from torchloom.core.detect.window import PAIRWISE, ROOTED, RankWindow
from torchloom.model.findings import Finding

_SHOWN = 32
_BEFORE_S = 5.0
"""So long before the others came to an operation another one may have failed that they had left."""


def stalled(
    graph: Graph,
    by_rank: Mapping[int, RankWindow],
    pace: Pace,
    limits: StuckLimits,
    circling: Collection[int],
    anybody_dead: bool,
) -> tuple[list[Finding], list[Finding]]:
    """Findings about ranks that are held inside, and the one that explains the other stalls best. A circle is
    reported already; a device that stands at another operation is explained by that one."""
    blamed: list[tuple[CollectiveWait, list[RankWindow]]] = []
    stalls: list[Finding] = []
    held_inside: list[Finding] = []
    for wait in graph.waits.values():
        if wait.absent or wait.held or any(r in circling for r in wait.ranks):
            continue
        inside = [by_rank[r] for r in sorted({*wait.ranks, *wait.beside})]
        if any(_is_held(w) for w in graphs.before(wait, graph, by_rank)):
            continue  # a rank that is stopped at an earlier operation explains it
        past = graphs.past(wait, graph, by_rank)
        held = [w for w in (*inside, *past) if _is_held(w)]
        if held:
            held_inside += _held_inside(held, wait, graph, pace, limits)
            continue
        if anybody_dead:
            continue  # a dead peer explains it; that is reported as a crash
        allowed = _limit(wait, pace, limits)
        behind = devices.behind(wait, inside, past)
        broke = [w for w in past if not behind and _failed_there(w, wait)]
        # An error is known before the pace of the job is.
        least_s = certain_report_s(pace, limits) if devices.failed(behind) else allowed.report_s
        if wait.shortest_s < (limits.error_report_s if broke else least_s):
            continue
        if behind:
            blamed.append((wait, behind))
        elif broke:
            stalls.append(_broke_off(wait, inside, broke, allowed))
        elif _is_left_by_most(wait, inside, past):
            stalls.append(_unfinished(wait, inside, past, allowed))
        else:
            stalls.append(_communication(wait, past, inside, allowed))
    if blamed:
        return held_inside, [_devices(blamed, graph, pace, limits)]
    stalls.sort(key=lambda f: (not f.ranks, -f.lasting_s, str(f.inputs["operation"])))
    return held_inside, stalls[:1]


def _failed_there(window: RankWindow, wait: CollectiveWait) -> bool:
    """Whether a collective of it has failed about when the others came here, and not some time before."""
    if window.accelerator is None or not window.accelerator.error:
        return False
    failed = window.failed
    return failed is None or window.taken_ns - failed.ended_ns <= (wait.longest_s + _BEFORE_S) * 1e9


def _is_held(window: RankWindow) -> bool:
    """Whether its process is stopped, or another program by now: it does nothing for what it has entered."""
    return window.process.state in ("T", "t") or bool(window.process.became)


def _limit(wait: CollectiveWait, pace: Pace, limits: StuckLimits) -> Limit:
    return limit(pace, limits, phase="training", location="", timeout_s=wait.timeout_s)


def _devices(
    blamed: Sequence[tuple[CollectiveWait, list[RankWindow]]], graph: Graph, pace: Pace, limits: StuckLimits
) -> Finding:
    """One finding for all devices that hold up others, wherever those wait; only those that failed, if some
    did."""
    broken = [(wait, some) for wait, found in blamed if (some := devices.failed(found))]
    blamed = broken or blamed
    wait, _ = max(blamed, key=lambda one: one[0].longest_s)
    culprits = {w.rank: w for _, found in blamed for w in found}
    held_up = {r for one, _ in blamed for r in (*one.ranks, *one.beside)}
    held_up |= set(graphs.held_up_by(graph, {*held_up, *culprits}))
    return devices.blame([culprits[r] for r in sorted(culprits)], held_up, wait, _limit(wait, pace, limits))


def _broke_off(
    wait: CollectiveWait, inside: Sequence[RankWindow], broke: Sequence[RankWindow], allowed: Limit
) -> Finding:
    """A rank left the operation because it failed there, and its host has not looked."""
    ranks = tuple(w.rank for w in broke)
    waiting = tuple(w.rank for w in inside)
    errors = sorted({w.accelerator.error for w in broke if w.accelerator is not None})
    have, where = ("has", "it") if len(ranks) == 1 else ("have", "each")
    return Finding(
        kind="hang",
        ranks=ranks,
        node=words.node_of(broke),
        sentence=f"{words.whom(broke)} {have} left {words.operation(wait.collective)}, in which the others "
        f"have been for {words.lasting(wait.shortest_s)}: a collective failed on {where} "
        f"({'; '.join(errors[:2])}){words.then_waiting(waiting)}",
        confidence=0.9,
        certainty="a program that makes its groups anew may mend this",
        may_act=may_act(inside, wait.shortest_s, allowed.act_s),
        lasting_s=wait.shortest_s,
        waiting=waiting,
        ask=ranks[:_SHOWN],
        evidence=still.evidence(broke),
        inputs=inputs(allowed, wait),
    )


def _is_left_by_most(wait: CollectiveWait, inside: Sequence[RankWindow], past: Sequence[RankWindow]) -> bool:
    """On devices: nobody leaves a symmetric operation before all have given their part, so whoever stays
    inside while most have left it is held up by itself."""
    op = wait.collective.op
    of_all = wait.collective.group_seq > 0 and op not in PAIRWISE  # no receive from anybody
    symmetric = wait.collective.on_device and of_all and op not in ROOTED
    return symmetric and not wait.unknown and len(past) > len(inside)


def _unfinished(
    wait: CollectiveWait, inside: Sequence[RankWindow], past: Sequence[RankWindow], allowed: Limit
) -> Finding:
    ranks = tuple(w.rank for w in inside)
    left = tuple(w.rank for w in past)
    have = "has" if len(ranks) == 1 else "have"
    return Finding(
        kind="hang",
        ranks=ranks,
        node=words.node_of(inside),
        sentence=f"{words.whom(inside)} {have} not finished {words.operation(wait.collective)} for "
        f"{words.lasting(wait.shortest_s)}, which the others ({words.ranks_text(left)}) have left; "
        f"{words.all_doing(inside)}",
        confidence=0.8,
        certainty="a slow transfer to it looks the same",
        may_act=may_act(inside, wait.shortest_s, allowed.act_s),
        lasting_s=wait.shortest_s,
        waiting=left,
        ask=ranks[:_SHOWN],
        evidence=still.evidence(inside),
        inputs=inputs(allowed, wait),
    )


def _communication(
    wait: CollectiveWait, past: Sequence[RankWindow], inside: Sequence[RankWindow], allowed: Limit
) -> Finding:
    lost = f"; {wait.unknown} of its ranks cannot be seen" if wait.unknown else ""
    text = (
        f"all ranks have entered {words.operation(wait.collective)}"
        if not lost
        else f"{words.waiting(wait.ranks)} in {words.operation(wait.collective)}"
    )
    done = f"only {words.ranks_text(w.rank for w in past)} left it" if past else "none is done"
    return Finding(
        kind="communication-hang",
        ranks=(),
        sentence=f"{text} and {done} for {words.lasting(wait.shortest_s)}{lost}",
        confidence=0.5 if lost else 0.9,
        certainty="a slow transfer looks the same: the links must be probed",
        may_act=may_act(inside, wait.shortest_s, allowed.act_s),
        lasting_s=wait.shortest_s,
        waiting=wait.ranks,
        ask=wait.ranks[:_SHOWN],
        inputs=inputs(allowed, wait),
    )


def _held_inside(
    held: Sequence[RankWindow], wait: CollectiveWait, graph: Graph, pace: Pace, limits: StuckLimits
) -> list[Finding]:
    """A rank entered and was stopped then, by a signal or by a debugger, or has become another program: it is
    in, but its part of the operation is not done."""
    report_s = certain_report_s(pace, limits)
    if wait.longest_s < report_s:
        return []
    sure = [w for w in held if ended(w)]
    held = sure or [w for w in held if w.process.became] or held
    act_s = _limit(wait, pace, limits).act_s
    acted = all(w.process.became for w in held) and may_act(held, wait.longest_s, act_s)
    ranks = {w.rank for w in held}
    held_up = {*wait.ranks, *graphs.behind_it(wait, graph), *graphs.held_up_by(graph, ranks)}
    waiting = tuple(sorted(held_up - ranks))
    did = f"{'has' if len(held) == 1 else 'have'} been in"
    if not ranks & set(wait.ranks):
        did = f"{'has' if len(held) == 1 else 'have'} left"
    operation = f"{did} {words.operation(wait.collective)}"
    cannot = "cannot finish it" if ranks & set(wait.ranks) else "its part of it may not be sent"
    return [
        Finding(
            kind="hang",
            ranks=tuple(sorted(ranks)),
            node=words.node_of(held),
            sentence=f"{words.whom(held)} {operation} for {words.lasting(wait.longest_s)} and {cannot}; "
            f"{words.all_doing(held)}{words.then_waiting(waiting)}",
            confidence=0.99 if sure else 0.9,
            certain=bool(sure),
            certainty=certainty(held[0], pace, limits)[1],
            may_act=bool(sure) or acted,
            lasting_s=wait.longest_s,
            waiting=waiting,
            ask=tuple(w.rank for w in held[:_SHOWN]),
            evidence=still.evidence(held),
            inputs={"report_s": report_s, "operation": words.operation(wait.collective)},
        )
    ]


def inputs(allowed: Limit, wait: CollectiveWait) -> dict[str, float | str]:
    return {
        "report_s": allowed.report_s,
        "act_s": allowed.act_s,
        "why": allowed.why,
        "operation": words.operation(wait.collective),
    }
