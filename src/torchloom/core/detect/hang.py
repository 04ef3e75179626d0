"""Hangs: whom everybody waits for, a circle of waiting, or a stall inside an operation.

Follows the wait-for graph to ranks that are absent and wait for nobody. A rank that has entered is never
blamed. What an absent rank is doing decides whether this is certain: an evaluation or a slow read on one rank
looks like a hang and is not one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchloom.core.detect import graph as graphs
from torchloom.core.detect import words
from torchloom.core.detect.graph import Graph, Key, Wait
from torchloom.core.detect.thresholds import Limit, Limits, Pace, frozen_after_s, limit
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Evidence, Finding

_SHOWN = 32


def hangs(windows: Sequence[RankWindow], pace: Pace, limits: Limits) -> list[Finding]:
    """Everything that holds ranks up for longer than the job's own pace allows."""
    least_s = min(limits.hang_floor_s, limits.start_report_s)
    if all(w.idle_s < least_s for w in windows):
        return []  # the usual case must cost nothing: whoever moved lately is not stuck
    graph = graphs.build(windows)
    if not graph.at:
        return _nobody_waits(windows, pace, limits)
    by_rank = {w.rank: w for w in windows}
    return [
        *_absent(graph, by_rank, pace, limits),
        *_circles(graph, by_rank, pace, limits),
        *_stalls(graph, by_rank, pace, limits),
    ]


def certainty(window: RankWindow, pace: Pace, limits: Limits) -> tuple[bool, str]:
    """Whether this rank will surely not come, and why (not)."""
    facts = window.process
    if window.dead:
        return True, "its process is dead"
    if facts.state == "T":
        return True, "its process is stopped"
    needed_s = frozen_after_s(pace, limits, location=facts.location, waits_on=facts.waits_on)
    unchanged_s = facts.unchanged_ns / 1e9
    if not facts.unchanged_samples:
        return False, "its process has not been sampled"
    if facts.unchanged_samples >= limits.frozen_samples and unchanged_s >= needed_s:
        return True, f"stack, CPU time and I/O have not changed for {words.lasting(unchanged_s)}"
    if unchanged_s > 0:
        return False, f"unchanged for {words.lasting(unchanged_s)} of {words.lasting(needed_s)}"
    return False, "its process is at work"


def _absent(graph: Graph, by_rank: Mapping[int, RankWindow], pace: Pace, limits: Limits) -> list[Finding]:
    """Ranks that others wait for and that wait for nobody; together when missed at the same place."""
    together: dict[tuple[Key, bool, str, str, str], list[int]] = {}
    for rank, keys in graph.awaited.items():
        if rank in graph.at:
            continue
        window = by_rank[rank]
        sure, _ = certainty(window, pace, limits)
        main = max(keys, key=lambda k: (graph.waits[k].longest_s, k))
        alike = (main, sure, window.process.state, window.process.location, window.phase)
        together.setdefault(alike, []).append(rank)
    found = []
    for (main, *_), ranks in together.items():
        wait = graph.waits[main]
        culprits = [by_rank[r] for r in sorted(ranks)]
        finding = _blame(culprits, wait, graphs.held_up_by(graph, ranks), pace, limits)
        if finding is not None:
            found.append(finding)
    return sorted(found, key=lambda f: (-f.certain, -len(f.waiting), -f.lasting_s))


def _blame(
    culprits: Sequence[RankWindow], wait: Wait, waiting: tuple[int, ...], pace: Pace, limits: Limits
) -> Finding | None:
    first = culprits[0]
    allowed = limit(pace, limits, phase=first.phase, location=first.process.location)
    if wait.longest_s < allowed.report_s:
        return None
    sure, why = certainty(first, pace, limits)
    sure = sure and wait.proven and not (allowed.excused and not first.dead and first.process.state != "T")
    moving = all(w.idle_s < min(limits.hang_floor_s, wait.longest_s / 2) for w in culprits)
    entered = f"{'has' if len(culprits) == 1 else 'have'} not entered {words.operation(wait.collective)}"
    start = not any(w.steps_done for w in culprits)
    return Finding(
        kind="no-progress" if start else "hang",
        ranks=tuple(w.rank for w in culprits),
        node=words.node_of(culprits),
        sentence=f"{words.whom(culprits)} {entered} for {words.lasting(wait.longest_s)}; "
        f"{words.doing(first)}; {words.waiting(waiting)}",
        confidence=0.99 if sure else 0.5 if moving or not wait.proven or wait.unknown else 0.9,
        certain=sure,
        certainty=why,
        may_act=sure or wait.longest_s >= allowed.act_s,
        lasting_s=wait.longest_s,
        waiting=waiting,
        ask=() if sure else tuple(w.rank for w in culprits[:_SHOWN]),
        evidence=_evidence(culprits),
        inputs=_inputs(allowed, wait),
    )


def _circles(graph: Graph, by_rank: Mapping[int, RankWindow], pace: Pace, limits: Limits) -> list[Finding]:
    found = []
    for circle in graphs.cycles(graph):
        waits = [graph.waits[k] for k in {graph.at[r] for r in circle}]
        lasting_s = min(w.shortest_s for w in waits)
        allowed = limit(pace, limits, phase="training", location="")
        if lasting_s < allowed.report_s:
            continue
        busy = sorted(circle & graph.weak)
        # Whoever entered without waiting may be busy elsewhere: then it is the one that does not come.
        hang = bool(busy) and len(busy) < len(circle)
        ranks = tuple(busy) if hang else tuple(sorted(circle))
        windows = [by_rank[r] for r in ranks]
        places = " and ".join(sorted({words.operation(w.collective) for w in waits})[:4])
        why = "the groups are used in different orders"
        if hang:
            why = f"{words.ranks_text(ranks)} entered without waiting and may be busy elsewhere"
        sure = not busy and all(w.proven for w in waits)
        found.append(
            Finding(
                kind="hang" if hang else "ordering-deadlock",
                ranks=() if hang else ranks,
                node=words.node_of(windows),
                sentence=f"{words.ranks_text(circle)} wait for each other in {places} "
                f"for {words.lasting(lasting_s)}: {why}",
                confidence=0.99 if sure else 0.5,
                certain=sure,
                certainty="a circle of waiting never ends" if sure else "some entered without waiting",
                may_act=sure or lasting_s >= allowed.act_s,
                lasting_s=lasting_s,
                waiting=graphs.held_up_by(graph, circle),
                ask=() if sure else ranks[:_SHOWN],
                evidence=_evidence(windows),
                inputs=_inputs(allowed, waits[0]),
            )
        )
    return found


def _stalls(graph: Graph, by_rank: Mapping[int, RankWindow], pace: Pace, limits: Limits) -> list[Finding]:
    """Everybody is in, nobody is done: the operation itself does not end."""
    allowed = limit(pace, limits, phase="training", location="")
    found = []
    for wait in graph.waits.values():
        if wait.absent or wait.shortest_s < allowed.report_s:
            continue
        if any(by_rank[r].dead for r in by_rank):
            continue  # a dead peer explains it; that is told as a crash
        lost = f"; {wait.unknown} of its ranks cannot be seen" if wait.unknown else ""
        text = (
            f"all ranks have entered {words.operation(wait.collective)}"
            if not lost
            else (f"{words.waiting(wait.ranks)} in {words.operation(wait.collective)}")
        )
        lasting_s = wait.shortest_s
        found.append(
            Finding(
                kind="communication-hang",
                ranks=(),
                sentence=f"{text} and none is done for {words.lasting(lasting_s)}{lost}",
                confidence=0.5 if lost else 0.9,
                certainty="a slow transfer looks the same: the links must be probed",
                may_act=lasting_s >= allowed.act_s,
                lasting_s=lasting_s,
                waiting=wait.ranks,
                ask=wait.ranks[:_SHOWN],
                inputs=_inputs(allowed, wait),
            )
        )
    return sorted(found, key=lambda f: (-f.lasting_s, str(f.inputs["operation"])))[:1]


def _nobody_waits(windows: Sequence[RankWindow], pace: Pace, limits: Limits) -> list[Finding]:
    """No rank is in a collective: stuck only if none of them moves at all."""
    alive = [w for w in windows if not w.dead]
    if not alive:
        return []
    lasting_s = min(w.idle_s for w in alive)
    judged = [limit(pace, limits, phase=w.phase, location=w.process.location) for w in alive]
    allowed = max(judged, key=lambda one: one.report_s)
    if lasting_s < allowed.report_s:
        return []
    sure = [certainty(w, pace, limits) for w in alive]
    certain = all(s for s, _ in sure) and not any(one.excused for one in judged)
    done = max(w.steps_done for w in alive)
    since = f"after step {done}" if done else "since the start, and no step is completed"
    verb = "shows" if len(alive) == 1 else "show"
    return [
        Finding(
            kind="hang" if done else "no-progress",
            ranks=tuple(sorted(w.rank for w in alive)),
            node=words.node_of(alive),
            sentence=f"{words.whom(alive)} {verb} no progress for {words.lasting(lasting_s)} {since}; "
            f"{words.doing(alive[0])}",
            confidence=0.9 if certain else 0.6,
            certain=certain,
            certainty=sure[0][1],
            may_act=certain or lasting_s >= max(one.act_s for one in judged),
            lasting_s=lasting_s,
            ask=() if certain else tuple(w.rank for w in alive[:_SHOWN]),
            evidence=_evidence(alive),
            inputs={"report_s": allowed.report_s, "act_s": allowed.act_s, "why": allowed.why},
        )
    ]


def _evidence(windows: Sequence[RankWindow]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(w.rank, f"state {w.process.state}, phase {w.phase}, step {w.steps_done}; {words.doing(w)}")
        for w in windows[:_SHOWN]
    )


def _inputs(allowed: Limit, wait: Wait) -> dict[str, float | str]:
    return {
        "report_s": allowed.report_s,
        "act_s": allowed.act_s,
        "why": allowed.why,
        "operation": words.operation(wait.collective),
    }
