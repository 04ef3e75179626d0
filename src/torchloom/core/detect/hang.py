"""Hangs: ranks that all others wait for, a circle of waiting, or a stall inside an operation.

Follows the wait-for graph to ranks that are absent and wait for nobody. A rank that has entered is never
blamed. What an absent rank is doing decides whether this is certain: an evaluation or a slow read on one rank
looks like a hang and is not one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torchloom.core.detect import devices, still, words
from torchloom.core.detect import graph as graphs
from torchloom.core.detect.board import DEAD, FAILED, STOPPED, WindowBoard
from torchloom.core.detect.certainty import certainty, ended, is_out, may_act
from torchloom.core.detect.graph import CollectiveWait, Graph, Key
from torchloom.core.detect.joined import also_stopped, joined, while_others_return
from torchloom.core.detect.skipped import collectives, sends
from torchloom.core.detect.stalls import inputs, stalled
from torchloom.core.detect.thresholds import (
    Limit,
    Pace,
    StuckLimits,
    certain_report_s,
    limit,
)
from torchloom.core.detect.window import ANY_SOURCE, PAIRWISE, RankWindow
from torchloom.model.findings import Finding

_SHOWN = 32
_SAID = 4


def hangs(windows: Sequence[RankWindow], pace: Pace, limits: StuckLimits) -> list[Finding]:
    """Everything that blocks ranks for longer than the job's own pace allows."""
    board = WindowBoard.of(windows)
    least_s = min(limits.hang_floor_s, limits.start_report_s)
    if board.marked(FAILED):
        least_s = min(least_s, limits.error_report_s)
    if board.longest_idle_s() < least_s and not devices.any_stands(board, least_s):
        return []  # the usual case must cost nothing: a rank that moved lately is not stuck
    if len(board.marked(STOPPED)) == len(board) and all(w.process.state == "T" for w in board):
        return still.suspended(windows, pace, limits)
    graph = graphs.build(board)
    if not graph.at:
        return still.nobody_waits(windows, pace, limits)
    by_rank = board.by_rank()
    halted = {board.ranks[row] for row in board.marked(STOPPED) | board.marked(DEAD)}
    absent = _absent(graph, board, pace, limits, halted)
    circles = _circles(graph, by_rank, pace, limits)
    circling = {r for f in circles for r in f.ranks}
    inside, stalls = stalled(graph, by_rank, pace, limits, circling, bool(board.marked(DEAD)))
    named = while_others_return(also_stopped(joined([*absent, *inside]), board), board)
    return [*named, *joined(circles), *stalls]


def _absent(
    graph: Graph,
    board: WindowBoard,
    pace: Pace,
    limits: StuckLimits,
    halted: Collection[int],
) -> list[Finding]:
    """Ranks that others wait for and that wait for nobody; one finding for all that are missed at a place.

    If some will certainly not arrive, they are to blame, and the others are only mentioned. `halted`: ranks
    whose process is stopped or dead. Of all that wait in vain no windows are made.
    """
    by_rank = board.by_rank()
    at_place: dict[Key, list[int]] = {}
    for rank, keys in graph.awaited.items():
        if rank not in graph.at:
            main = keys[0] if len(keys) == 1 else max(keys, key=lambda k: (graph.waits[k].longest_s, k))
            at_place.setdefault(main, []).append(rank)
    found = []
    for main, ranks in at_place.items():
        wait = graph.waits[main]
        allowed_s: dict[tuple[str, str, str], float] = {}
        windows = board.sketches(sorted(ranks))
        gone = [w for w in windows if ended(w)] or [w for w in windows if is_out(w)]
        sure = gone or [w for w in windows if certainty(w, pace, limits)[0]]
        late = []
        for w in () if sure else windows:
            if (place := _place(w)) not in allowed_s:
                allowed_s[place] = _limit(w, wait, pace, limits).report_s
            if wait.longest_s >= allowed_s[place]:
                late.append(w)
        culprits = sorted(sure or late, key=lambda w: w.rank)
        if not culprits:
            continue
        blamed = {w.rank for w in culprits}
        others = [w.rank for w in windows if w.rank not in blamed] if sure else []
        # A rank that entered and was then stopped blocks it as well.
        stopped = [by_rank[r] for r in wait.ranks if r in halted] if gone and halted else []
        inside = [w for w in stopped if ended(w)]
        waiting = graphs.held_up_by(graph, [w.rank for w in windows])
        finding = _blame(culprits, wait, waiting, pace, limits, others, inside)
        if finding is not None:
            finding = devices.joined_by(finding, wait, by_rank)
        if finding is not None:
            found.append(finding)
    return found


def _place(window: RankWindow) -> tuple[str, str, str]:
    """What its limit depends on."""
    return window.phase, window.process.location, window.process.script_failed


def _limit(window: RankWindow, wait: CollectiveWait, pace: Pace, limits: StuckLimits) -> Limit:
    phase = "" if window.process.script_failed else window.phase  # what follows a failure is not announced
    return limit(pace, limits, phase=phase, location=window.process.location, timeout_s=wait.timeout_s)


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
    out = all(map(is_out, culprits))
    report_s = min(certain_report_s(pace, limits), allowed.report_s) if out else allowed.report_s
    if wait.longest_s < report_s:
        return None
    sure = sure and wait.proven and (over or not allowed.excused)
    moving = all(w.idle_s < min(limits.hang_floor_s, wait.longest_s / 2) for w in culprits)
    alive = any(words.living(w) or w.process.tracer for w in culprits if not w.process.became)
    acted = may_act(culprits, wait.longest_s, allowed.act_s) and not moving
    entered = f"{'has' if len(culprits) == 1 else 'have'} {_missed(wait)}"
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
        inputs=inputs(allowed, wait) | {"report_s": report_s},
    )


def _missed(wait: CollectiveWait) -> str:
    """What those that are absent have not done."""
    if wait.collective.op == ANY_SOURCE:
        return f"sent nothing to {words.ranks_text(wait.ranks)}, which receives from anybody,"
    return f"not entered {words.operation(wait.collective)}"


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
        sure = not busy and all(w.proven and not w.held for w in waits)
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
                certainty="a circle of waiting never ends" if sure else _unsure(waits),
                may_act=sure or may_act(windows, lasting_s, allowed.act_s),
                lasting_s=lasting_s,
                waiting=graphs.held_up_by(graph, circle),
                ask=ranks[:_SHOWN],
                evidence=still.evidence(windows),
                inputs=inputs(allowed, waits[0]),
            )
        )
    return found


def _unsure(waits: Sequence[CollectiveWait]) -> str:
    if any(w.held for w in waits):
        return "a long kernel on another stream of a device looks the same"
    return "some entered without waiting"


def _apart(circle: Collection[int], busy: Sequence[int], graph: Graph) -> str:
    """Who waits where in a circle that some entered without waiting."""
    there: dict[str, list[int]] = {}
    for rank in sorted(set(circle) - set(busy)):
        there.setdefault(words.operation(graph.waits[graph.at[rank]].collective), []).append(rank)
    places = " and ".join(
        f"{words.ranks_text(some)} {'waits' if len(some) == 1 else 'wait'} in {what}"
        for what, some in sorted(there.items())[:4]
    )
    one = len(busy) == 1
    not_there = f"{words.ranks_text(busy)} {'has' if one else 'have'} not joined"
    return f"{places}, which {not_there}; {'it' if one else 'they'} may be busy elsewhere"
