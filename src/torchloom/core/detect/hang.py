"""Hangs: ranks that all others wait for, a circle of waiting, or a stall inside an operation.

Follows the wait-for graph to ranks that are absent and wait for nobody. A rank that has entered is never
blamed. What an absent rank is doing decides whether this is certain: an evaluation or a slow read on one rank
looks like a hang and is not one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torchloom.core.detect import devices, still, words
from torchloom.core.detect import graph as graphs
from torchloom.core.detect.certainty import certainty, ended, may_act
from torchloom.core.detect.graph import CollectiveWait, Graph, Key
from torchloom.core.detect.joined import also_stopped, joined
from torchloom.core.detect.skipped import collectives, sends
from torchloom.core.detect.thresholds import (
    Limit,
    Pace,
    StuckLimits,
    certain_report_s,
    limit,
)
from torchloom.core.detect.window import PAIRWISE, RankWindow
from torchloom.model.findings import Finding

_SHOWN = 32
_SAID = 4


def hangs(windows: Sequence[RankWindow], pace: Pace, limits: StuckLimits) -> list[Finding]:
    """Everything that blocks ranks for longer than the job's own pace allows."""
    least_s = min(limits.hang_floor_s, limits.start_report_s)
    if all(w.idle_s < least_s for w in windows):
        return []  # the usual case must cost nothing: a rank that moved lately is not stuck
    if all(w.process.state == "T" for w in windows):
        return still.suspended(windows, pace, limits)
    graph = graphs.build(windows)
    if not graph.at:
        return still.nobody_waits(windows, pace, limits)
    by_rank = {w.rank: w for w in windows}
    absent = _absent(graph, by_rank, pace, limits)
    circles = _circles(graph, by_rank, pace, limits)
    inside, stalls = _stalls(graph, by_rank, pace, limits, {r for f in circles for r in f.ranks})
    named = also_stopped(joined([*absent, *inside]), by_rank)
    return [*named, *joined(circles), *stalls]


def _absent(
    graph: Graph, by_rank: Mapping[int, RankWindow], pace: Pace, limits: StuckLimits
) -> list[Finding]:
    """Ranks that others wait for and that wait for nobody; one finding for all that are missed at a place.

    If some will certainly not arrive, they are to blame, and the others are only mentioned.
    """
    at_place: dict[Key, list[int]] = {}
    for rank, keys in graph.awaited.items():
        if rank not in graph.at:
            main = max(keys, key=lambda k: (graph.waits[k].longest_s, k))
            at_place.setdefault(main, []).append(rank)
    found = []
    for main, ranks in at_place.items():
        wait = graph.waits[main]
        windows = [by_rank[r] for r in sorted(ranks)]
        gone = [w for w in windows if ended(w)]
        sure = gone or [w for w in windows if certainty(w, pace, limits)[0]]
        late = [w for w in windows if wait.longest_s >= _limit(w, wait, pace, limits).report_s]
        culprits = sorted(sure or late, key=lambda w: w.rank)
        if not culprits:
            continue
        blamed = {w.rank for w in culprits}
        others = [w.rank for w in windows if w.rank not in blamed] if sure else []
        # A rank that entered and was then stopped blocks it as well.
        inside = [by_rank[r] for r in wait.ranks if gone and ended(by_rank[r])]
        waiting = graphs.held_up_by(graph, [w.rank for w in windows])
        finding = _blame(culprits, wait, waiting, pace, limits, others, inside)
        if finding is not None:
            found.append(finding)
    return found


def _limit(window: RankWindow, wait: CollectiveWait, pace: Pace, limits: StuckLimits) -> Limit:
    return limit(pace, limits, phase=window.phase, location=window.process.location, timeout_s=wait.timeout_s)


def _blame(
    culprits: Sequence[RankWindow],
    wait: CollectiveWait,
    waiting: tuple[int, ...],
    pace: Pace,
    limits: StuckLimits,
    others: Sequence[int] = (),
    inside: Sequence[RankWindow] = (),
) -> Finding | None:
    first = culprits[0]
    allowed = _limit(first, wait, pace, limits)
    sure, why = certainty(first, pace, limits)
    over = all(map(ended, culprits))
    report_s = min(certain_report_s(pace, limits), allowed.report_s) if over else allowed.report_s
    if wait.longest_s < report_s:
        return None
    sure = sure and wait.proven and (over or not allowed.excused)
    moving = all(w.idle_s < min(limits.hang_floor_s, wait.longest_s / 2) for w in culprits)
    alive = any(words.living(w) or w.process.tracer for w in culprits)
    acted = may_act(culprits, wait.longest_s, allowed.act_s) and not moving
    entered = f"{'has' if len(culprits) == 1 else 'have'} not entered {words.operation(wait.collective)}"
    said = (
        f"{words.whom(culprits)} {entered} for {words.lasting(wait.longest_s)}; {words.all_doing(culprits)}"
    )
    start = not any(w.steps_done for w in culprits) and pace.steps < limits.start_steps
    also = f"; {words.ranks_text(others)} did not come either" if others else ""
    if inside:
        also += f"; {words.ranks_text(w.rank for w in inside)} entered it and was stopped there"
        culprits = sorted([*culprits, *inside], key=lambda w: w.rank)
        stopped = {w.rank for w in inside}
        waiting = tuple(r for r in waiting if r not in stopped)
    return Finding(
        kind="no-progress" if start else "hang",
        ranks=tuple(w.rank for w in culprits),
        node=words.node_of(culprits),
        sentence=f"{said}{also}{words.then_waiting(waiting)}",
        confidence=0.99 if sure else 0.5 if moving or alive or not wait.proven or wait.unknown else 0.9,
        certain=sure,
        certainty=why,
        # A rank that makes progress will arrive, however long it takes.
        may_act=sure or acted,
        lasting_s=wait.longest_s,
        waiting=waiting,
        ask=tuple(w.rank for w in culprits[:_SHOWN]),
        evidence=still.evidence(culprits),
        inputs=_inputs(allowed, wait) | {"report_s": report_s},
    )


def _circles(
    graph: Graph, by_rank: Mapping[int, RankWindow], pace: Pace, limits: StuckLimits
) -> list[Finding]:
    found = []
    for circle in graphs.cycles(graph):
        waits = [graph.waits[k] for k in sorted({graph.at[r] for r in circle})]
        lasting_s = min(w.shortest_s for w in waits)
        timeout_s = max(w.timeout_s for w in waits)
        allowed = limit(pace, limits, phase="training", location="", timeout_s=timeout_s)
        if lasting_s < certain_report_s(pace, limits):
            continue
        busy = sorted(circle & graph.weak)
        # A rank that entered without waiting may be busy elsewhere: then it is the missing one.
        skipped = collectives(circle, graph, by_rank) or ([] if busy else sends(circle, graph, by_rank))
        hang = bool(busy) and len(busy) < len(circle) and not skipped
        ranks = tuple(busy) if hang else tuple(sorted({one.rank for one in skipped} or circle))
        windows = [by_rank[r] for r in ranks]
        places = " and ".join(sorted({words.operation(w.collective) for w in waits})[:4])
        why = "the groups are used in different orders"
        if any(w.collective.op in PAIRWISE for w in waits):
            why = "a send or a receive is missing, or they come in different orders"
        if hang:
            why = _apart(circle, busy, graph)
        elif skipped:
            why = " and ".join(f"rank {one.rank} left out {one.what}" for one in skipped[:_SAID])
        sure = not busy and all(w.proven for w in waits)
        if not sure and lasting_s < allowed.report_s:
            continue
        found.append(
            Finding(
                kind="hang" if hang else "desync" if skipped else "ordering-deadlock",
                ranks=() if hang else ranks,
                node=words.node_of(windows),
                sentence=f"{words.ranks_text(circle)} wait for each other in {places} "
                f"for {words.lasting(lasting_s)}: {why}",
                confidence=0.99 if sure else 0.9 if skipped else 0.5,
                certain=sure,
                certainty="a circle of waiting never ends" if sure else "some entered without waiting",
                may_act=sure or may_act(windows, lasting_s, allowed.act_s),
                lasting_s=lasting_s,
                waiting=graphs.held_up_by(graph, circle),
                ask=ranks[:_SHOWN],
                evidence=still.evidence(windows),
                inputs=_inputs(allowed, waits[0]),
            )
        )
    return found


def _apart(circle: Collection[int], busy: Sequence[int], graph: Graph) -> str:
    """Who waits where in a circle that some entered without waiting."""
    there: dict[str, list[int]] = {}
    for rank in sorted(set(circle) - set(busy)):
        there.setdefault(words.operation(graph.waits[graph.at[rank]].collective), []).append(rank)
    places = " and ".join(
        f"{words.ranks_text(some)} {'waits' if len(some) == 1 else 'wait'} in {what}"
        for what, some in sorted(there.items())[:4]
    )
    return f"{places}, which {words.ranks_text(busy)} have not joined; they may be busy elsewhere"


def _stalls(
    graph: Graph,
    by_rank: Mapping[int, RankWindow],
    pace: Pace,
    limits: StuckLimits,
    circling: Collection[int],
) -> tuple[list[Finding], list[Finding]]:
    """All ranks entered and none has finished: a rank is held inside, or the operation itself stalls. Of
    ranks that wait in a circle that is reported already."""
    found: list[Finding] = []
    held_inside: list[Finding] = []
    anybody_dead = any(w.dead for w in by_rank.values())
    for wait in graph.waits.values():
        if wait.absent or any(r in circling for r in wait.ranks):
            continue
        inside = [by_rank[r] for r in wait.ranks]
        if any(w.process.state in ("T", "t") for w in graphs.before(wait, graph, by_rank)):
            continue  # a rank that is stopped at an earlier operation explains it
        past = graphs.past(wait, graph, by_rank)
        held = [w for w in (*inside, *past) if w.process.state in ("T", "t")]
        if held:
            held_inside += _held_inside(held, wait, graph, pace, limits)
            continue
        allowed = limit(pace, limits, phase="training", location="", timeout_s=wait.timeout_s)
        if wait.shortest_s < allowed.report_s:
            continue
        if anybody_dead:
            continue  # a dead peer explains it; that is reported as a crash
        behind = devices.failed(past) or devices.behind(inside)
        if behind:
            found.append(devices.blame(behind, inside, wait, allowed))
            continue
        lost = f"; {wait.unknown} of its ranks cannot be seen" if wait.unknown else ""
        text = (
            f"all ranks have entered {words.operation(wait.collective)}"
            if not lost
            else (f"{words.waiting(wait.ranks)} in {words.operation(wait.collective)}")
        )
        lasting_s = wait.shortest_s
        done = f"only {words.ranks_text(w.rank for w in past)} left it" if past else "none is done"
        found.append(
            Finding(
                kind="communication-hang",
                ranks=(),
                sentence=f"{text} and {done} for {words.lasting(lasting_s)}{lost}",
                confidence=0.5 if lost else 0.9,
                certainty="a slow transfer looks the same: the links must be probed",
                may_act=may_act(inside, lasting_s, allowed.act_s),
                lasting_s=lasting_s,
                waiting=wait.ranks,
                ask=wait.ranks[:_SHOWN],
                inputs=_inputs(allowed, wait),
            )
        )
    found.sort(key=lambda f: (-f.lasting_s, str(f.inputs["operation"])))
    return held_inside, found[:1]


def _held_inside(
    held: Sequence[RankWindow], wait: CollectiveWait, graph: Graph, pace: Pace, limits: StuckLimits
) -> list[Finding]:
    """A rank entered and was stopped then, by a signal or by a debugger: it is in, but its part of the
    operation is not done."""
    report_s = certain_report_s(pace, limits)
    if wait.longest_s < report_s:
        return []
    sure = [w for w in held if ended(w)]
    held = sure or held
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
            may_act=bool(sure),
            lasting_s=wait.longest_s,
            waiting=waiting,
            ask=tuple(w.rank for w in held[:_SHOWN]),
            evidence=still.evidence(held),
            inputs={"report_s": report_s, "operation": words.operation(wait.collective)},
        )
    ]


def _inputs(allowed: Limit, wait: CollectiveWait) -> dict[str, float | str]:
    return {
        "report_s": allowed.report_s,
        "act_s": allowed.act_s,
        "why": allowed.why,
        "operation": words.operation(wait.collective),
    }
