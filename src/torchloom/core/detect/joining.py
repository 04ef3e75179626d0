"""Ranks that wait for others to make a process group with them: before that, nothing is recorded."""

from __future__ import annotations

from collections.abc import Sequence

from torchloom.core.detect import graph as graphs
from torchloom.core.detect import words
from torchloom.core.detect.board import PHASE, WindowBoard
from torchloom.core.detect.certainty import certainty, may_act
from torchloom.core.detect.thresholds import JOINING, Pace, StuckLimits, act_after_s
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Evidence, Finding

_SHOWN = 32
NEW_GROUP_S = 10.0
"""Once a job has trained, ranks that do not come to new_group are reported after this long, and so are ranks
that wait for each other, some of them to make a group."""


def not_joined(windows: Sequence[RankWindow], pace: Pace, limits: StuckLimits) -> list[Finding]:
    """Ranks that are missing where others make a process group, or a group that no rank finishes making."""
    here = [w for w in WindowBoard.of(windows).with_mark(PHASE) if w.phase == JOINING and not w.dead]
    lasting_s = max((_since_s(w) for w in here), default=0.0)
    if lasting_s >= NEW_GROUP_S and (circle := _circle(here, windows, limits)):
        return circle
    first = not any(w.groups or w.steps_done for w in windows)
    report_s = limits.joining_report_s if first else min(limits.joining_report_s, NEW_GROUP_S)
    if lasting_s < report_s:
        return []
    act_s = act_after_s(limits, limits.start_act_s, 0.0)
    ranks = tuple(sorted(w.rank for w in here))
    absent = [w for w in windows if w.phase != JOINING]
    call = "init_process_group" if first else "new_group"
    lasting = words.lasting(lasting_s)
    if not absent:
        shortest_s = min(_since_s(w) for w in here)
        if shortest_s < limits.joining_report_s:
            return []  # to connect may take long in a large job
        return [
            Finding(
                kind="communication-hang",
                ranks=(),
                sentence=f"all {len(here)} ranks have called {call} and none has come out of it for "
                f"{words.lasting(shortest_s)}: they do not reach each other, or expect other ranks",
                confidence=0.9,
                certainty="a slow network looks the same",
                may_act=may_act(here, shortest_s, act_s),
                lasting_s=shortest_s,
                waiting=ranks,
                ask=ranks[:_SHOWN],
                evidence=_evidence(here),
                inputs={"report_s": limits.joining_report_s, "act_s": act_s, "operation": call},
            )
        ]
    judged = [certainty(w, pace, limits) for w in absent]
    sure = all(one for one, _ in judged)
    moving = any(w.idle_s < limits.hang_floor_s for w in absent if not w.dead)
    alive = any(words.living(w) or w.process.tracer for w in absent)
    have = "has" if len(absent) == 1 else "have"
    return [
        Finding(
            kind="no-progress" if first else "hang",
            ranks=tuple(sorted(w.rank for w in absent)),
            node=words.node_of(absent),
            sentence=f"{words.whom(absent)} {have} not called {call} for {lasting}; "
            f"{words.all_doing(absent)}{words.then_waiting(ranks)}",
            confidence=0.99 if sure else 0.5 if moving or alive else 0.9,
            certain=sure,
            certainty=judged[0][1],
            may_act=sure or (may_act(absent, lasting_s, act_s) and not moving),
            lasting_s=lasting_s,
            waiting=ranks,
            ask=tuple(w.rank for w in absent[:_SHOWN]),
            evidence=_evidence(absent),
            inputs={"report_s": report_s, "act_s": act_s, "operation": call},
        )
    ]


def _circle(here: Sequence[RankWindow], windows: Sequence[RankWindow], limits: StuckLimits) -> list[Finding]:
    """Ranks that make a group while all others wait for them in a collective: some left out a call, or made
    one too many. The fewer are to blame; of as many on both sides it is not known which."""
    joins = {w.rank for w in here}
    others = [w for w in windows if w.rank not in joins]
    if not others or any(w.dead or not w.collectives for w in others):
        return []
    graph = graphs.build(windows)
    waits = [graph.waits[graph.at[w.rank]] for w in others if w.rank in graph.at]
    if len(waits) < len(others) or any(joins.isdisjoint(wait.absent) for wait in waits):
        return []
    lasting_s = min(*map(_since_s, here), *(wait.shortest_s for wait in waits))
    if lasting_s < NEW_GROUP_S:
        return []
    tie = len(here) == len(others)
    blamed = list(windows if tie else here if len(here) < len(others) else others)
    if tie:
        which = "one side left out a call or made one too many, and it is not known which"
    elif blamed[0].rank in joins:
        which = f"{words.whom(blamed)} made one group too many, or called it too early"
    else:
        which = f"{words.whom(blamed)} left out new_group"
    places = " and ".join(sorted({words.operation(wait.collective) for wait in waits})[:2])
    ranks = tuple(sorted(w.rank for w in blamed))
    act_s = act_after_s(limits, limits.hang_act_s, max(wait.timeout_s for wait in waits))
    wait = "waits" if len(here) == 1 else "wait"
    return [
        Finding(
            kind="desync",
            ranks=ranks,
            node=words.node_of(blamed),
            sentence=f"{words.whom(here)} {wait} in new_group and "
            f"{words.waiting([w.rank for w in others])} in {places} for each other for "
            f"{words.lasting(lasting_s)}: {which}",
            confidence=0.6 if tie else 0.9,
            certainty="a group whose members connect slowly looks the same for a while",
            may_act=may_act(windows, lasting_s, act_s),
            lasting_s=lasting_s,
            waiting=tuple(sorted(w.rank for w in windows)),
            ask=ranks[:_SHOWN],
            evidence=_evidence(blamed),
            inputs={"report_s": NEW_GROUP_S, "act_s": act_s, "operation": "new_group"},
        )
    ]


def _since_s(window: RankWindow) -> float:
    return max(0, window.taken_ns - (window.phase_since_ns or window.taken_ns)) / 1e9


def _evidence(windows: Sequence[RankWindow]) -> tuple[Evidence, ...]:
    return tuple(Evidence(w.rank, f"state {w.process.state}; {words.doing(w)}") for w in windows[:_SHOWN])
