"""Which ranks are slow, or whether the whole job is: turns what slow.py measured into findings. Why a rank is
late is in why_late.py, and what may be the shape of a pipeline in stages.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from torchloom.core.detect import words
from torchloom.core.detect.cost import lasting_share, what_if
from torchloom.core.detect.own_times import MAX_STEPS, Peers, own_times, sample
from torchloom.core.detect.robust import median
from torchloom.core.detect.slow import (
    SETTLED,
    Late,
    SlowLimits,
    Trigger,
    held_back,
    lasting_late,
    lasting_set,
    localise,
)
from torchloom.core.detect.stages import CHANGED, RECENT_OWN, SAME, STAGE_STEPS, as_stage, uneven_stages
from torchloom.core.detect.transfers import say, transfer_times, where
from torchloom.core.detect.uneven import periodic, unevenness
from torchloom.core.detect.why_late import EXPLAINS, Usual, explain
from torchloom.core.detect.window import RankWindow, by_role
from torchloom.model.findings import Finding

SET_FROM = 3
"""More late ranks than this are reported as one set."""
_SHOWN = 16
UNEVEN_SPREAD = 0.08
UNEVEN_LOSS = 0.15


def stragglers(
    windows: Sequence[RankWindow], limits: SlowLimits, past_ns: Mapping[int, float] | None = None
) -> list[Finding]:
    """Findings for every late rank, and for roles in which a different rank is late every time. `past_ns` is
    each rank's own time of before: in a pipeline without roles it tells a slow rank from a long stage."""
    found: list[Finding] = []
    roles = by_role(windows)
    long_stages: list[Finding] | None = None
    for peers in [Peers.of(windows)] if len(roles) == 1 else map(Peers, roles.values()):
        named = _named(peers, limits)
        named = _together(named, peers) if len(named) > SET_FROM else named
        unlike = not peers[0].role and any(w.pairs for w in peers)
        if unlike:
            named = [as_stage(one, peers, past_ns or {}) for one in named]
        found += named
        if not named:
            named = _periodic(peers, limits)
            if unlike and not named:
                if long_stages is None:
                    long_stages = uneven_stages(windows, limits)
                if long_stages or Peers.of(peers).shared < STAGE_STEPS:
                    continue  # ranks of different stages differ in every step, and in the same way
            found += named or _uneven(peers)
    return found or long_stages or []


def _together(named: Sequence[Finding], peers: Sequence[RankWindow]) -> list[Finding]:
    """One finding for a set of ranks that are slow for the same reason, however many they are."""
    by_kind: dict[str, list[Finding]] = {}
    for one in named:
        by_kind.setdefault(one.kind, []).append(one)
    found = []
    for some in by_kind.values():
        if len(some) == 1:
            found += some
            continue
        ranks = tuple(sorted(r for one in some for r in one.ranks))
        ratios = sorted(float(one.inputs["ratio"]) for one in some)
        middle = some[len(some) // 2]
        why = middle.sentence.partition(": ")[2]
        these = set(ranks)
        windows = [w for w in peers if w.rank in these]
        found.append(
            replace(
                middle,
                ranks=ranks,
                node=words.node_of(windows),
                sentence=f"{words.whom(windows)} ({len(ranks)} of {len(peers)}) take {ratios[0]:.2f}–"
                f"{ratios[-1]:.2f}× the time of their peers: {why}",
                confidence=min(one.confidence for one in some),
                evidence=tuple(e for one in some[:_SHOWN] for e in one.evidence),
            )
        )
    return found


def changed_ranks(
    windows: Sequence[RankWindow], past_ns: Mapping[int, float], trigger: Trigger
) -> list[Finding]:
    """Ranks that take longer than they did themselves before, where the others do not: of a pipeline or any
    other job in which nobody does the same work."""
    now = {r: _median(times) for r, times in own_times(windows, RECENT_OWN).items() if times}
    known = {r: now[r] / past_ns[r] for r in now if past_ns.get(r, 0.0) > 0}
    slower = [
        r
        for r, ratio in known.items()
        if ratio > CHANGED and now[r] - past_ns[r] > EXPLAINS * 1e9 * (trigger.now_s - trigger.baseline_s)
    ]
    changed = set(slower)
    others = [ratio for r, ratio in known.items() if r not in changed]
    if not slower or len(known) < len(windows) or len(slower) > len(known) / 2 or max(others) > SAME:
        return []
    blamed = [w for w in windows if w.rank in changed]
    worst = max(slower, key=lambda r: known[r])
    return [
        Finding(
            kind="compute-slow",
            ranks=tuple(sorted(slower)),
            node=words.node_of(blamed),
            sentence=f"{words.whom(blamed)} {'takes' if len(blamed) == 1 else 'take'} {known[worst]:.2f}× "
            f"the time of before ({words.change(past_ns[worst] / 1e9, now[worst] / 1e9)} a step), and the "
            f"others do not; steps went from {words.change(trigger.baseline_s, trigger.now_s)}",
            confidence=0.8,
            certainty="slowness is reported, never certain",
            inputs={"ratio": known[worst], "excess_s": (now[worst] - past_ns[worst]) / 1e9},
        )
    ]


def _periodic(peers: Sequence[RankWindow], limits: SlowLimits) -> list[Finding]:
    by_rank = {w.rank: w for w in peers}
    return [
        Finding(
            kind="compute-slow",
            ranks=(one.rank,),
            node=by_rank[one.rank].node,
            sentence=f"{words.who(by_rank[one.rank])} takes {one.ratio:.1f}× the time of its peers in every "
            f"{_ordinal(one.every)} step ({words.lasting(one.excess_ns / 1e9)} more), and the others wait",
            confidence=0.8,
            certainty="slowness is reported, never certain",
            inputs={"ratio": one.ratio, "every": one.every, "excess_s": one.excess_ns / 1e9 / one.every},
        )
        for one in periodic(peers, limits)
    ]


def _named(peers: Sequence[RankWindow], limits: SlowLimits) -> list[Finding]:
    """The late ranks of one role. Who is excused is one of the others: for what peers take, and for what the
    job would be without the late ones."""
    late, stopped = _late(peers, limits), held_back(peers, limits)
    by_rank = {w.rank: w for w in peers}
    while late or stopped:
        named = {one.rank: one for one in late}
        cost = what_if(peers, named, late[0].steps if late else 1)
        if cost.share < limits.matters:
            late = _hidden(peers, late, limits)
            named = {one.rank: one for one in late}
        if _one_group(peers, set(named)):
            named = {}  # it is what they share that is slow
        named |= {one.rank: one for one in stopped if one.rank not in named}
        if stopped:
            cost = what_if(peers, named)
        calm = [w for w in peers if w.rank not in named]
        usual = Usual(calm, late[0].steps if late else MAX_STEPS)
        found = {rank: explain(by_rank[rank], one, usual, cost) for rank, one in named.items()}
        told = [finding for finding in found.values() if finding is not None]
        if len(told) == len(found):
            return told
        late = [one for one in late if found.get(one.rank, ()) is not None]
        stopped = [one for one in stopped if found[one.rank] is not None]
    return []


def _hidden(peers: Sequence[RankWindow], late: Sequence[Late], limits: SlowLimits) -> list[Late]:
    """Of late ranks without which the job would be no faster: those that are late for good, where in most
    steps some other rank takes as long by chance. Nobody if another rank is as slow for good."""
    known = {one.rank for one in late}
    lasting = [one for one in lasting_late(peers, limits) if one.rank in known]
    ranks = {one.rank for one in lasting}
    return lasting if lasting_share(peers, ranks) >= limits.matters else []


def _late(peers: Sequence[RankWindow], limits: SlowLimits) -> list[Late]:
    """Those that stand out one by one; or, where these are only a part of it, the whole set that is slow."""
    late, whole = localise(peers, limits), lasting_set(peers, limits)
    return whole if {one.rank for one in late} < {one.rank for one in whole} else late


def _one_group(peers: Sequence[RankWindow], late: set[int]) -> bool:
    """Whether the late ranks are most of one group: then their group's communication is slow, not they."""
    if len(late) <= 2:
        return False
    one = min(late)  # a group that has all of them is one of this one's
    members = {g.name: set[int]() for w in peers if w.rank == one for g in w.groups}
    for window in peers:
        for group in window.groups:
            if group.name in members:
                members[group.name].add(window.rank)
    some = [m for m in members.values() if len(m) < len(peers)]
    return any(late <= m and 2 * len(late) > len(m) for m in some)


def _uneven(peers: Sequence[RankWindow]) -> list[Finding]:
    uneven, loss = unevenness(peers, UNEVEN_LOSS)
    if uneven < UNEVEN_SPREAD or loss < UNEVEN_LOSS:
        return []
    own = _median([s.own_ns for w in sample(peers) for s in w.steps])
    delay = _median([w.process.run_delay_ns_per_step for w in peers])
    if delay >= uneven * own / 2:
        return []  # too many processes for the cores make every rank uneven; no data would mend that
    return [
        Finding(
            kind="data-imbalance",
            ranks=(),
            node=words.node_of(peers),
            sentence=f"a different one of {words.ranks_text(w.rank for w in peers)} is late in every step; "
            f"the slowest takes {loss:.0%} more than the median: batches are of uneven size",
            confidence=0.6,
            certainty="slowness is reported, never certain",
            inputs={"spread": uneven, "loss": loss},
        )
    ]


def slower_job(
    windows: Sequence[RankWindow], trigger: Trigger, usual_ns: Mapping[str, float]
) -> list[Finding]:
    """What to say when the job is slower and no rank is late: the communication, or everybody alike.
    `usual_ns` is what transfers should take."""
    if not trigger.alarmed:
        return []
    excess_s = trigger.now_s - trigger.baseline_s
    now = transfer_times(windows)
    longer = {g: now[g] - before for g, before in usual_ns.items() if g in now}
    worst = max(longer, key=lambda g: (longer[g], g), default="")
    pace = words.change(trigger.baseline_s, trigger.now_s)
    inputs: dict[str, float | str] = {"before_s": trigger.baseline_s, "now_s": trigger.now_s}
    if worst and longer[worst] / 1e9 >= EXPLAINS * excess_s:
        sentence = (
            f"steps went from {pace} because transfers {where(windows, worst)} take "
            f"{words.lasting(longer[worst] / 1e9)} longer and nobody is late"
        )
        return [say(windows, worst, sentence, longer[worst], inputs)]
    if trigger.above < SETTLED:
        return []
    return [
        Finding(
            kind="global-slowdown",
            ranks=(),
            sentence=f"steps went from {pace} on all ranks alike; no rank, data wait or transfer explains it",
            confidence=0.7,
            certainty="slowness is reported, never certain",
            inputs=inputs,
        )
    ]


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"


def _median(values: Sequence[float]) -> float:
    return median(values) if values else 0.0
