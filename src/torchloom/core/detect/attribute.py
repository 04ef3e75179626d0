"""Which ranks are slow, or whether the whole job is: turns what slow.py measured into findings. Why a rank is
late is in why_late.py, and what may be the shape of a pipeline in stages.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from torchloom.core.detect import words
from torchloom.core.detect.board import PAIRS, WindowBoard
from torchloom.core.detect.bursts import LongSteps, bursts, is_stopped_often
from torchloom.core.detect.comparable import by_role
from torchloom.core.detect.cost import Cost, lasting_share, what_if
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
from torchloom.core.detect.stages import (
    CHANGED,
    RECENT_OWN,
    SAME,
    STAGE_STEPS,
    all_changed,
    as_stage,
    uneven_stages,
)
from torchloom.core.detect.transfers import say, transfer_times, where
from torchloom.core.detect.uneven import periodic, unevenness
from torchloom.core.detect.why_late import EXPLAINS, Cause, Spent, Usual, explain
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Evidence, Finding

SET_FROM = 3
"""Of a pipeline without roles, where each stage may take its own time, more late ranks than this are reported
as one set; of ranks that do the same, any that are slow for the same reason."""
_SHOWN = 16
_NONE_LONG = LongSteps()
UNEVEN_SPREAD = 0.08
UNEVEN_LOSS = 0.15


def stragglers(
    windows: Sequence[RankWindow],
    limits: SlowLimits,
    past_ns: Mapping[int, float] | None = None,
    long: LongSteps = _NONE_LONG,
) -> list[Finding]:
    """Findings for every late rank, and for roles in which a different rank is late every time. `past_ns` is
    each rank's own time of before: in a pipeline without roles it tells a slow rank from a long stage. `long`
    are the long steps of before."""
    found: list[Finding] = []
    long_stages: list[Finding] | None = None
    for peers in by_role(windows).values():
        sends = peers.board.marked(PAIRS)
        unlike = not peers[0].role and bool(sends) and not sends.isdisjoint(peers.rows)
        named = _named(peers, limits, alone=SET_FROM if unlike else 1)
        if unlike and named:
            if all_changed(peers, past_ns or {}):
                continue  # the job is slower as a whole, and the latest is not the one to blame
            named = [as_stage(one, peers, past_ns or {}) for one in named]
        found += named
        if not named:
            named = _periodic(peers, limits) or _bursts(peers, long)
            if unlike and not named:
                if long_stages is None:
                    long_stages = uneven_stages(windows, limits)
                if long_stages or peers.shared < STAGE_STEPS:
                    continue  # ranks of different stages differ in every step, and in the same way
            found += named or _uneven(peers)
    return found or long_stages or []


def _together(named: Sequence[Cause], cost: Cost, peers: Peers) -> list[Finding]:
    """One finding for all ranks that are slow for the same reason, be they two or thousands."""
    by_kind: dict[str, list[Cause]] = {}
    for one in named:
        by_kind.setdefault(one.kind, []).append(one)
    found = []
    for some in by_kind.values():
        if len(some) == 1:
            found.append(some[0].finding(cost))
            continue
        ranks = tuple(sorted(one.window.rank for one in some))
        ratios = sorted(one.late.ratio for one in some)
        middle = some[len(some) // 2].finding(cost)
        why = middle.sentence.partition(": ")[2]
        windows = [peers.board.outline(peers.row[rank]) for rank in ranks]
        found.append(
            replace(
                middle,
                ranks=ranks,
                node=words.node_of(windows),
                sentence=f"{words.whom(windows)} ({len(ranks)} of {len(peers)}) take {_span(ratios)}× the "
                f"time of their peers; for each, {why}",
                confidence=min(one.confidence for one in some),
                evidence=tuple(one.evidence() for one in some[:_SHOWN]),
            )
        )
    return found


def _span(ratios: Sequence[float]) -> str:
    """`1.46–1.52` of ordered ratios."""
    least, most = f"{ratios[0]:.2f}", f"{ratios[-1]:.2f}"
    return least if least == most else f"{least}–{most}"


def against_own_past(slower: Finding, windows: Sequence[RankWindow], past_ns: Mapping[int, float]) -> Finding:
    """A slowdown of all ranks, with what each of them takes now and took before: where no two ranks do the
    same work (the stages of a pipeline), only that shows by how much each has changed."""
    now = {r: _median(times) for r, times in own_times(windows, RECENT_OWN).items() if times}
    ratios = {r: now[r] / past_ns[r] for r in now if past_ns.get(r, 0.0) > 0}
    if "run_delay_s" in slower.inputs or len(ratios) < len(windows) or min(ratios.values()) < CHANGED:
        return slower
    least, most = min(ratios, key=lambda r: (ratios[r], r)), max(ratios, key=lambda r: (ratios[r], -r))
    alike = ratios[most] < CHANGED * ratios[least]
    how = (
        f"on all ranks alike: each takes {ratios[least]:.2f}–{ratios[most]:.2f}× its own time of before"
        if alike
        else f"on all ranks: each takes longer than it did itself, from {ratios[least]:.2f}× (rank {least}) "
        f"to {ratios[most]:.2f}× (rank {most})"
    )
    pace = words.change(float(slower.inputs["before_s"]), float(slower.inputs["now_s"]))
    shown = sorted(ratios, key=lambda r: (-ratios[r], r))[:_SHOWN]
    return replace(
        slower,
        sentence=f"steps went from {pace} {how}; no data wait or transfer explains it",
        evidence=tuple(
            Evidence(
                r, f"{words.change(past_ns[r] / 1e9, now[r] / 1e9)} a step of its own ({ratios[r]:.2f}×)"
            )
            for r in shown
        ),
    )


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
    if not slower or not others or len(known) < len(windows) or max(others) > SAME:
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


def _periodic(peers: Peers, limits: SlowLimits) -> list[Finding]:
    return [
        Finding(
            kind="compute-slow",
            ranks=(one.rank,),
            node=peers.window(one.rank).node,
            sentence=f"{words.who(peers.window(one.rank))} takes {one.ratio:.1f}× the time of its peers in "
            f"every {_ordinal(one.every)} step ({words.lasting(one.excess_ns / 1e9)} more), "
            "and the others wait",
            confidence=0.8,
            certainty="slowness is reported, never certain",
            inputs={"ratio": one.ratio, "every": one.every, "excess_s": one.excess_ns / 1e9 / one.every},
        )
        for one in periodic(peers, limits)
    ]


def _bursts(peers: Peers, long: LongSteps) -> list[Finding]:
    """Ranks that take long now and then, with what holds them up if that was seen."""
    found = []
    for one in bursts(peers, long):
        window = peers.window(one.rank)
        a_step_ns = one.excess_ns * one.times / max(1, one.among)
        delays = zip(peers.ranks, peers.of_rows(peers.board.run_delays_ns()), strict=True)
        delay_ns = window.process.run_delay_ns_per_step - _median([d for r, d in delays if r != one.rank])
        why = ""
        if is_stopped_often(window):
            why = f": {words.stopped_often(window)}"
        elif delay_ns >= EXPLAINS * a_step_ns:
            why = f": it wants a CPU and has none for {words.lasting(delay_ns / 1e9)} a step more than they"
        found.append(
            Finding(
                kind="host-contention" if why else "compute-slow",
                ranks=(one.rank,),
                node=window.node,
                sentence=f"{words.who(window)} takes {words.lasting(one.excess_ns / 1e9)} longer than its "
                f"peers now and then ({one.times} of {one.among} steps), and the others wait{why}; "
                f"this costs {one.share:.0%} of the job's speed",
                confidence=0.8,
                certainty="slowness is reported, never certain",
                inputs={
                    "ratio": 1 + one.excess_ns / max(1.0, one.step_ns),
                    "excess_s": a_step_ns / 1e9,
                    "run_delay_s": max(0.0, delay_ns / 1e9),
                    "times": one.times,
                    "cost": one.share,
                },
            )
        )
    return found


def _named(peers: Peers, limits: SlowLimits, alone: int) -> list[Finding]:
    """The late ranks of one role: a finding each of so many, else one for all. Who is excused is one of the
    others: for what peers take, and for what the job would be without the late ones."""
    late, stopped = _late(peers, limits), held_back(peers, limits)
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
        calm = [row for rank, row in zip(peers.ranks, peers.rows, strict=True) if rank not in named]
        usual = Usual(Peers.of(peers.board, calm), late[0].steps if late else MAX_STEPS)
        found = _explained(peers, named, usual)
        told = [cause for cause in found.values() if cause is not None]
        if len(told) == len(found):
            if len(told) > alone:
                return _together(told, cost, peers)
            return [cause.finding(cost) for cause in told]
        late = [one for one in late if found.get(one.rank, ()) is not None]
        stopped = [one for one in stopped if found[one.rank] is not None]
    return []


def _explained(peers: Peers, named: Mapping[int, Late], usual: Usual) -> dict[int, Cause | None]:
    waits: dict[int, float] = {}
    for steps in {one.steps for one in named.values()}:
        ranks = [rank for rank, one in named.items() if one.steps == steps]
        waits |= zip(ranks, peers.data_wait_ns(ranks, steps), strict=True)
    board, row = peers.board, peers.row
    cpu, delay, throttled = board.cpu_ns(), board.run_delays_ns(), board.throttled_ns()
    found = {}
    for rank, one in named.items():
        at = row[rank]
        spent = Spent(waits[rank], cpu[at], delay[at], throttled[at])
        found[rank] = explain(board.outline(at), one, usual, spent)
    return found


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


def _one_group(peers: Peers, late: set[int]) -> bool:
    """Whether the late ranks are most of one group: then their group's communication is slow, not they."""
    if len(late) <= 2:
        return False
    one = min(late)  # a group that has all of them is one of this one's
    groups = peers.board.groups
    here = peers.row.keys()
    members = (here & set(groups[g.name].ranks) for g in peers.window(one).groups)
    return any(len(m) < len(peers) and late <= m and 2 * len(late) > len(m) for m in members)


def _uneven(peers: Peers) -> list[Finding]:
    uneven, loss = unevenness(peers, UNEVEN_LOSS)
    if uneven < UNEVEN_SPREAD or loss < UNEVEN_LOSS:
        return []
    own = _median([s.own_ns for w in sample(peers) for s in w.steps])
    delay = _median(peers.of_rows(peers.board.run_delays_ns()))
    if delay >= uneven * own / 2:
        return []  # too many processes for the cores make every rank uneven; no data would mend that
    return [
        Finding(
            kind="data-imbalance",
            ranks=(),
            node=words.node_of(peers),
            sentence=f"a different one of {words.ranks_text(peers.ranks)} is late in every step; "
            f"the slowest takes {loss:.0%} more than the median: batches are of uneven size",
            confidence=0.6,
            certainty="slowness is reported, never certain",
            inputs={"spread": uneven, "loss": loss},
        )
    ]


def slower_job(
    windows: Sequence[RankWindow], trigger: Trigger, usual_ns: Mapping[str, float], usual_crowd: float = 0.0
) -> list[Finding]:
    """What to say when the job is slower and no rank is late: the communication, or everybody alike.
    `usual_ns` is what transfers should take, and `usual_crowd` for which part of a step the ranks usually
    waited for a CPU."""
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
    delay_s = WindowBoard.of(windows).crowd_ns() / 1e9
    crowded_s = delay_s - usual_crowd * trigger.baseline_s
    if crowded_s >= EXPLAINS * excess_s:
        inputs["run_delay_s"] = delay_s
    return [
        Finding(
            kind="global-slowdown",
            ranks=(),
            sentence=f"steps went from {pace} on all ranks alike"
            + (
                f": they want a CPU and have none for {words.lasting(delay_s)} a step, so other work on "
                f"{words.place_of(windows)} takes it"
                if crowded_s >= EXPLAINS * excess_s
                else "; no rank, data wait or transfer explains it"
            ),
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
