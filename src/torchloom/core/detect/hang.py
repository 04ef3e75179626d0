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
from torchloom.core.detect.thresholds import Limit, Limits, Pace, certain_report_s, frozen_after_s, limit
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Evidence, Finding

_SHOWN = 32


def hangs(windows: Sequence[RankWindow], pace: Pace, limits: Limits) -> list[Finding]:
    """Everything that holds ranks up for longer than the job's own pace allows."""
    least_s = min(limits.hang_floor_s, limits.start_report_s)
    if all(w.idle_s < least_s for w in windows):
        return []  # the usual case must cost nothing: whoever moved lately is not stuck
    if all(w.process.state == "T" for w in windows):
        return _suspended(windows, pace, limits)
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
    if facts.waits_on == "timer":
        return False, "it sleeps, and a timer will wake it"
    if facts.unchanged_samples >= limits.frozen_samples and unchanged_s >= needed_s:
        return True, f"stack, CPU time and I/O have not changed for {words.lasting(unchanged_s)}"
    if facts.unchanged_samples == 1:
        return False, "its process was at work when it was looked at before, or was looked at only once"
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
    sure, why = certainty(first, pace, limits)
    ended = first.dead or first.process.state == "T"
    report_s = min(certain_report_s(pace, limits), allowed.report_s) if ended else allowed.report_s
    if wait.longest_s < report_s:
        return None
    sure = sure and wait.proven and (ended or not allowed.excused)
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
        # A rank that is seen to get on will come, however long it takes.
        may_act=sure or (wait.longest_s >= allowed.act_s and not moving),
        lasting_s=wait.longest_s,
        waiting=waiting,
        ask=tuple(w.rank for w in culprits[:_SHOWN]),
        evidence=_evidence(culprits),
        inputs=_inputs(allowed, wait) | {"report_s": report_s},
    )


def _circles(graph: Graph, by_rank: Mapping[int, RankWindow], pace: Pace, limits: Limits) -> list[Finding]:
    found = []
    for circle in graphs.cycles(graph):
        waits = [graph.waits[k] for k in {graph.at[r] for r in circle}]
        lasting_s = min(w.shortest_s for w in waits)
        allowed = limit(pace, limits, phase="training", location="")
        if lasting_s < certain_report_s(pace, limits):
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
        if not sure and lasting_s < allowed.report_s:
            continue
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
                ask=ranks[:_SHOWN],
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
        stopped = [by_rank[r] for r in wait.ranks if by_rank[r].process.state == "T"]
        if stopped and not wait.absent:
            found += _stopped_inside(stopped, wait, pace, limits)
            continue
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


def _stopped_inside(stopped: Sequence[RankWindow], wait: Wait, pace: Pace, limits: Limits) -> list[Finding]:
    """A rank entered and was stopped then: it is in, but its part of the operation is not done."""
    report_s = certain_report_s(pace, limits)
    if wait.longest_s < report_s:
        return []
    waiting = tuple(r for r in wait.ranks if r not in {w.rank for w in stopped})
    return [
        Finding(
            kind="hang",
            ranks=tuple(sorted(w.rank for w in stopped)),
            node=words.node_of(stopped),
            sentence=f"{words.whom(stopped)} has been in {words.operation(wait.collective)} "
            f"for {words.lasting(wait.longest_s)} and cannot finish it; {words.doing(stopped[0])}; "
            f"{words.waiting(waiting)}",
            confidence=0.99,
            certain=True,
            certainty="its process is stopped",
            may_act=True,
            lasting_s=wait.longest_s,
            waiting=waiting,
            ask=tuple(w.rank for w in stopped[:_SHOWN]),
            evidence=_evidence(stopped),
            inputs={"report_s": report_s, "operation": words.operation(wait.collective)},
        )
    ]


def _nobody_waits(windows: Sequence[RankWindow], pace: Pace, limits: Limits) -> list[Finding]:
    """No rank is in a collective: stuck only if none of them moves at all.

    Nobody is held up, so this is never certain by itself: a script that has trained may well sit and serve.
    Ranks of which nothing was ever recorded may be any program, and nothing is said about them.
    """
    alive = [w for w in windows if not w.dead]
    if not alive or not any(w.steps_done or w.groups for w in alive):
        return []
    lasting_s = min(w.idle_s for w in alive)
    judged = [limit(pace, limits, phase=w.phase, location=w.process.location) for w in alive]
    allowed = max(judged, key=lambda one: one.report_s)
    report_s = max(allowed.report_s, min(limits.quiet_report_s, limits.hang_cap_s))
    if lasting_s < report_s:
        return []
    sure = [certainty(w, pace, limits) for w in alive]
    frozen = all(s for s, _ in sure) and not any(one.excused for one in judged)
    done = max(w.steps_done for w in alive)
    step = done + words.offset_of(alive)
    since = f"after step {step}" if done else "since the start, and no step is completed"
    verb = "shows" if len(alive) == 1 else "show"
    return [
        Finding(
            kind="hang" if done else "no-progress",
            ranks=tuple(sorted(w.rank for w in alive)),
            node=words.node_of(alive),
            sentence=f"{words.whom(alive)} {verb} no progress for {words.lasting(lasting_s)} {since}; "
            f"{words.doing(alive[0])}",
            confidence=0.9 if frozen else 0.6,
            certainty=f"{sure[0][1]}, but nobody waits for it",
            may_act=frozen and lasting_s >= max(one.act_s for one in judged),
            lasting_s=lasting_s,
            ask=tuple(w.rank for w in alive[:_SHOWN]),
            evidence=_evidence(alive),
            inputs={"report_s": report_s, "act_s": allowed.act_s, "why": allowed.why},
        )
    ]


def _suspended(windows: Sequence[RankWindow], pace: Pace, limits: Limits) -> list[Finding]:
    """Every process of the job is stopped: more likely somebody's wish than a fault, so it is only told."""
    lasting_s = min(w.idle_s for w in windows)
    report_s = certain_report_s(pace, limits)
    if lasting_s < report_s:
        return []
    everybody = "its only process is" if len(windows) == 1 else f"all {len(windows)} processes are"
    return [
        Finding(
            kind="hang",
            ranks=tuple(sorted(w.rank for w in windows)),
            node=words.node_of(windows),
            sentence=f"{everybody} stopped (SIGSTOP) and no step was made for {words.lasting(lasting_s)}; "
            "somebody may have suspended the job",
            confidence=0.9,
            certainty="whoever stopped all of them may let them go on",
            may_act=lasting_s >= limits.hang_act_s,
            lasting_s=lasting_s,
            ask=tuple(w.rank for w in windows[:_SHOWN]),
            evidence=_evidence(windows),
            inputs={"report_s": report_s, "act_s": limits.hang_act_s},
        )
    ]


def _evidence(windows: Sequence[RankWindow]) -> tuple[Evidence, ...]:
    found = []
    for w in windows[:_SHOWN]:
        step = w.steps_done + (w.offset or 0)
        said = f"state {w.process.state}, phase {w.phase}, step {step}; {words.doing(w)}"
        found.append(Evidence(w.rank, said))
    return tuple(found)


def _inputs(allowed: Limit, wait: Wait) -> dict[str, float | str]:
    return {
        "report_s": allowed.report_s,
        "act_s": allowed.act_s,
        "why": allowed.why,
        "operation": words.operation(wait.collective),
    }
