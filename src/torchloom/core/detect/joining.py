"""Ranks that wait for others to make a process group with them: before that, nothing is recorded."""

from __future__ import annotations

from collections.abc import Sequence

from torchloom.core.detect import words
from torchloom.core.detect.certainty import certainty, may_act
from torchloom.core.detect.thresholds import JOINING, Pace, StuckLimits, act_after_s
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Evidence, Finding

_SHOWN = 32


def not_joined(windows: Sequence[RankWindow], pace: Pace, limits: StuckLimits) -> list[Finding]:
    """Ranks that are missing where others make a process group, or a group that no rank finishes making."""
    here = [w for w in windows if w.phase == JOINING and not w.dead]
    lasting_s = max((_since_s(w) for w in here), default=0.0)
    if lasting_s < limits.joining_report_s:
        return []
    act_s = act_after_s(limits, limits.start_act_s, 0.0)
    ranks = tuple(sorted(w.rank for w in here))
    absent = [w for w in windows if w.phase != JOINING]
    first = not any(w.groups or w.steps_done for w in windows)
    call = "init_process_group" if first else "new_group"
    lasting = words.lasting(lasting_s)
    if not absent:
        shortest_s = min(_since_s(w) for w in here)
        if shortest_s < limits.joining_report_s:
            return []
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
            inputs={"report_s": limits.joining_report_s, "act_s": act_s, "operation": call},
        )
    ]


def _since_s(window: RankWindow) -> float:
    return max(0, window.taken_ns - (window.phase_since_ns or window.taken_ns)) / 1e9


def _evidence(windows: Sequence[RankWindow]) -> tuple[Evidence, ...]:
    return tuple(Evidence(w.rank, f"state {w.process.state}; {words.doing(w)}") for w in windows[:_SHOWN])
