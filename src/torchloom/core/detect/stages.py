"""Pipelines: ranks that do different work by design, so that a slow one and a long stage look alike.

Three things tell them apart: a rank's own past, a cause that was measured itself, and its peers of the same
stage. Without any of them the stage is reported as uneven, which blames nobody and is never acted on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from torchloom.core.detect import words
from torchloom.core.detect.cost import what_if
from torchloom.core.detect.own_times import Peers, own_times
from torchloom.core.detect.robust import median
from torchloom.core.detect.slow import Late, SlowLimits
from torchloom.core.detect.why_late import Spent, Usual, explain, measured
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Finding

CHANGED, SAME = 1.15, 1.1
"""A rank has changed from so much more than its own time of before, and is the same up to so much."""
RECENT_OWN = 16
_NEWEST = 8
"""The fewest steps in which a rank is found to be late: its own past is compared with as many."""
UNEVEN_STAGE = 1.3
"""A stage is reported from so many times the time of the others …"""
UNEVEN_COST = 0.1
"""… if the job loses this share of its speed to it: stages are never quite even."""
STAGE_STEPS, _OFTEN = 16, 0.8
"""It must be the slowest in this share of at least so many steps."""


def as_stage(one: Finding, peers: Sequence[RankWindow], past_ns: Mapping[int, float]) -> Finding:
    """A late rank of a pipeline that does not report its roles: it may just have more work. If it takes
    longer than it did itself, or the cause was measured, it is slow."""
    these = set(one.ranks)
    windows = [w for w in peers if w.rank in these]
    ratio = float(one.inputs["ratio"])
    if (before := _changed(windows, past_ns)) is not None:
        now_s, before_s = before
        return replace(
            one,
            sentence=f"{one.sentence}; it took {words.lasting(before_s)} a step before, "
            f"and now {words.lasting(now_s)}",
        )
    if measured(one):
        return one
    take, slow = ("takes", "it is slow") if len(windows) == 1 else ("take", "they are slow")
    return replace(
        one,
        kind="data-imbalance",
        sentence=f"{words.whom(windows)} {take} {ratio:.2f}× the time of the other ranks of the pipeline: "
        f"its stages are uneven, or {slow} (report roles with loom.role to find out)",
        confidence=min(one.confidence, 0.7),
    )


def _changed(windows: Sequence[RankWindow], past_ns: Mapping[int, float]) -> tuple[float, float] | None:
    """What the ranks take now and took before, in seconds, if each of them takes longer than it did."""
    pairs = []
    for window in windows:
        times = [s.own_ns for s in window.steps[-_NEWEST:]]
        before = past_ns.get(window.rank, 0.0)
        if not times or before <= 0 or median(times) < CHANGED * before:
            return None
        pairs.append((median(times) / 1e9, before / 1e9))
    return max(pairs, default=None)


def all_changed(windows: Sequence[RankWindow], past_ns: Mapping[int, float]) -> bool:
    """Whether every rank takes longer than it did itself: then the whole job is slower, however much more one
    of them is."""
    return len(windows) > 1 and all(_changed([window], past_ns) is not None for window in windows)


def uneven_stages(windows: Sequence[RankWindow], limits: SlowLimits) -> list[Finding]:
    """The stage (or stages, at most half of them) that the others wait for in nearly every step, if the job
    would be much faster without it. Within a stage nobody stands out: that is reported before."""
    stages = _stages(windows)
    if len(stages) < 2:
        return []
    own = own_times(windows)
    steps = len(next(iter(own.values()), []))
    if steps < STAGE_STEPS:
        return []
    times = {
        name: [median([own[w.rank][s] for w in some]) for s in range(steps)] for name, some in stages.items()
    }
    names = _above_the_gap({name: median(of) for name, of in times.items()})
    others = [name for name in stages if name not in names]
    if not names:
        return []
    now, usual_ns = (median([median(times[name]) for name in some]) for some in (names, others))
    ratio, excess = now / usual_ns, now - usual_ns
    apart = sum(
        median([times[name][s] for name in names]) > max(times[name][s] for name in others)
        for s in range(steps)
    )
    slow = sorted((w for name in names for w in stages[name]), key=lambda w: w.rank)
    cost = what_if(windows, {w.rank for w in slow}, steps)
    if ratio < UNEVEN_STAGE or apart < _OFTEN * steps or cost.share < max(UNEVEN_COST, limits.matters):
        return []
    usual = Usual([w for name in others for w in stages[name]], steps)
    late = [Late(w.rank, ratio, None, excess, apart / steps, steps) for w in slow]
    waits = Peers.of(windows).data_wait_ns([w.rank for w in slow], steps)
    each = zip(slow, late, waits, strict=True)
    told = [
        f.finding(cost) for w, one, ns in each if (f := explain(w, one, usual, Spent.of(w, ns))) is not None
    ]
    if not told:
        return []
    single = len(names) == 1 and (len(slow) == 1 or bool(slow[0].role))
    known = {f.kind for f in told if measured(f)}
    if len(known) == 1 and all(map(measured, told)):
        one, why = told[0], told[0].sentence.partition(": ")[2]
    else:
        one = replace(told[0], kind="data-imbalance", confidence=0.7)
        are = "it is slow" if len(slow) == 1 else "all its ranks are slow" if single else "they are slow"
        why = (
            f"{'it has' if single else 'they have'} more work, or {are}; this costs "
            f"{cost.lost_steps_per_s:.3g} steps/s, {cost.share:.0%} of the job's speed"
        )
    name = f"{', '.join(sorted(names))} ({words.whom(slow)})" if slow[0].role else words.whom(slow)
    return [
        replace(
            one,
            ranks=tuple(w.rank for w in slow),
            node=words.node_of(slow),
            sentence=f"{name} {'takes' if single else 'take'} {ratio:.2f}× the time of the other stages of "
            f"the pipeline ({words.lasting(excess / 1e9)} a step more), and they wait: {why}",
        )
    ]


def _above_the_gap(typical: Mapping[str, float]) -> list[str]:
    """The slow stages: those above the widest gap, if they are at most half of all."""
    order = sorted(typical, key=lambda name: (typical[name], name))
    widest = max(range(1, len(order)), key=lambda n: typical[order[n]] / max(1.0, typical[order[n - 1]]))
    return order[widest:] if 2 * (len(order) - widest) <= len(order) else []


def _stages(windows: Sequence[RankWindow]) -> dict[str, list[RankWindow]]:
    """Ranks of a pipeline by stage: the role they report, else their place in the group they send in. Empty
    if a rank sends to nobody, or only some report a role."""
    found: dict[str, list[RankWindow]] = {}
    for window in windows:
        if not window.pairs:
            return {}
        place = {g.name: g.rank for g in window.groups}.get(window.pairs[0].group)
        if not window.role and place is None:
            return {}
        found.setdefault(window.role or f"stage {place}", []).append(window)
    return found if len({bool(w.role) for w in windows}) == 1 else {}
