"""Jobs in which nothing moves and no rank is known to wait for another: nobody is in a recorded collective.

Without a wait there is no culprit by logic, only by the state of a process: a stopped one is named.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchloom.core.detect import words
from torchloom.core.detect.board import CHILDREN, WindowBoard
from torchloom.core.detect.certainty import certainty, ended, frozen, may_act
from torchloom.core.detect.thresholds import Pace, StuckLimits, act_after_s, certain_report_s, limit
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Evidence, Finding

_SHOWN = 32


def nobody_waits(windows: Sequence[RankWindow], pace: Pace, limits: StuckLimits) -> list[Finding]:
    """No rank is in a collective: stuck only if none of them moves at all.

    No rank waits, so this is never certain by itself: a script that has trained may well idle and serve.
    Ranks of which nothing was ever recorded may be any program, and nothing is reported about them.
    """
    alive = [w for w in windows if not w.dead]
    if not alive or not any(w.steps_done or w.groups for w in alive):
        return []
    lasting_s = min(w.idle_s for w in alive)
    timeout_s = max((g.timeout_s for w in alive for g in w.groups), default=0.0)
    judged = [
        limit(pace, limits, phase=w.phase, location=w.process.location, timeout_s=timeout_s) for w in alive
    ]
    allowed = max(judged, key=lambda one: one.report_s)
    act_s = max(one.act_s for one in judged)
    stopped = [w for w in alive if ended(w)]
    if 0 < len(stopped) < len(alive):
        return _stopped(stopped, alive, lasting_s, act_s, pace, limits)
    report_s = max(allowed.report_s, min(limits.quiet_report_s, limits.hang_cap_s))
    if lasting_s < report_s:
        return []
    still = all(frozen(w, limits) for w in alive) and not any(one.excused for one in judged)
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
            confidence=0.9 if still else 0.6,
            certainty=f"{certainty(alive[0], pace, limits)[1]}; nobody waits for it",
            may_act=still and may_act(alive, lasting_s, act_s),
            lasting_s=lasting_s,
            ask=tuple(w.rank for w in alive[:_SHOWN]),
            evidence=evidence(alive),
            inputs={"report_s": report_s, "act_s": allowed.act_s, "why": allowed.why},
        )
    ]


def _stopped(
    stopped: Sequence[RankWindow],
    alive: Sequence[RankWindow],
    lasting_s: float,
    act_s: float,
    pace: Pace,
    limits: StuckLimits,
) -> list[Finding]:
    """Some are stopped and none of the others moves. Whether the others wait for them is not recorded, so it
    is not certain; but nothing explains the silence better."""
    report_s = certain_report_s(pace, limits)
    if lasting_s < report_s:
        return []
    others = tuple(sorted({w.rank for w in alive} - {w.rank for w in stopped}))
    step = max(w.steps_done for w in alive) + words.offset_of(alive)
    verb = "is" if len(stopped) == 1 else "are"
    return [
        Finding(
            kind="hang",
            ranks=tuple(sorted(w.rank for w in stopped)),
            node=words.node_of(stopped),
            sentence=f"{words.whom(stopped)} {verb} stopped (SIGSTOP), and no rank shows progress for "
            f"{words.lasting(lasting_s)} after step {step}; whether {words.ranks_text(others)} "
            f"{'waits' if len(others) == 1 else 'wait'} for it is not recorded",
            confidence=0.9,
            certainty="no recorded collective shows that the others wait for it",
            may_act=may_act(alive, lasting_s, act_s),
            lasting_s=lasting_s,
            waiting=others,
            ask=tuple(sorted(w.rank for w in alive))[:_SHOWN],
            evidence=evidence(stopped),
            inputs={"report_s": report_s, "act_s": act_s},
        )
    ]


def silent_children(windows: Sequence[RankWindow], limits: StuckLimits) -> list[Finding]:
    """Workers that have recorded nothing and have child processes, of which none shows any life: a script
    that trains in processes of its own (`mp.spawn`) and hangs there. Its collectives cannot be seen, so who
    holds it up is not known, and it is only reported."""
    parents = WindowBoard.of(windows).with_mark(CHILDREN)
    quiet = [w for w in parents if not w.dead and not (w.steps_done or w.groups)]
    quiet = [w for w in quiet if w.process.tree_quiet_ns / 1e9 >= limits.start_report_s]
    if not quiet:
        return []
    lasting_s = min(w.process.tree_quiet_ns for w in quiet) / 1e9
    number = sum(w.process.children for w in quiet)
    have, their = ("has", "its") if len(quiet) == 1 else ("have", "their")
    return [
        Finding(
            kind="no-progress",
            ranks=tuple(sorted(w.rank for w in quiet)),
            node=words.node_of(quiet),
            sentence=f"{words.whom(quiet)} {have} recorded no step and no collective, and neither {their} "
            f"process nor {their} {number} child process{'es' * (number != 1)} showed any life for "
            f"{words.lasting(lasting_s)}; {words.all_doing(quiet)}",
            confidence=0.6,
            certainty="what the child processes wait for is not recorded",
            lasting_s=lasting_s,
            ask=tuple(sorted(w.rank for w in quiet))[:_SHOWN],
            evidence=evidence(quiet),
            inputs={"report_s": limits.start_report_s, "children": number},
        )
    ]


def suspended(windows: Sequence[RankWindow], pace: Pace, limits: StuckLimits) -> list[Finding]:
    """Every process of the job is stopped: more likely intended than a fault, so it is only reported."""
    lasting_s = min(w.idle_s for w in windows)
    report_s = certain_report_s(pace, limits)
    if lasting_s < report_s:
        return []
    timeout_s = max((g.timeout_s for w in windows for g in w.groups), default=0.0)
    act_s = act_after_s(limits, limits.hang_act_s, timeout_s)
    everybody = "its only process is" if len(windows) == 1 else f"all {len(windows)} processes are"
    return [
        Finding(
            kind="hang",
            ranks=tuple(sorted(w.rank for w in windows)),
            node=words.node_of(windows),
            sentence=f"{everybody} stopped (SIGSTOP) and no step was made for {words.lasting(lasting_s)}; "
            "somebody may have suspended the job",
            confidence=0.9,
            certainty="the person who stopped all of them may let them continue",
            may_act=lasting_s >= act_s,
            lasting_s=lasting_s,
            ask=tuple(w.rank for w in windows[:_SHOWN]),
            evidence=evidence(windows),
            inputs={"report_s": report_s, "act_s": act_s},
        )
    ]


def evidence(windows: Sequence[RankWindow]) -> tuple[Evidence, ...]:
    found = []
    for w in windows[:_SHOWN]:
        step = w.steps_done + (w.offset or 0)
        said = f"state {w.process.state}, phase {w.phase}, step {step}; {words.doing(w)}"
        found.append(Evidence(w.rank, said))
    return tuple(found)
