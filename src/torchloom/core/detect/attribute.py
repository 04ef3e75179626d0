"""Why a rank, or the whole job, is slow: turns what slow.py measured into findings with a cause.

A cause must explain a good part of the excess over the peers. It need not explain most of it, because a wait
in asynchronous collectives can be counted twice (see `waited_ns`). An unexplained excess is reported so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

from msgspec.structs import replace

from torchloom.core.detect import words
from torchloom.core.detect.cost import Cost, what_if
from torchloom.core.detect.own_times import MAX_STEPS, Peers, own_times, sample
from torchloom.core.detect.robust import median
from torchloom.core.detect.slow import (
    SETTLED,
    Late,
    SlowLimits,
    Trigger,
    held_back,
    lasting_set,
    localise,
    periodic,
    unevenness,
)
from torchloom.core.detect.transfers import say, transfer_times, where
from torchloom.core.detect.window import RankWindow, by_role
from torchloom.model.finding_kinds import FindingKind
from torchloom.model.findings import Evidence, Finding

EXPLAINS = 0.5
EXPLAINS_A_RANK = 0.35
SAME_CPU = 0.1
"""CPU times of ranks that do the same differ by this much; cold caches alone may cost it …"""
SAME_CPU_IF_CROWDED = 0.25
"""… and by this much where all of them wait for a core for longer than one of them is late."""
COUNTED = 0.85
"""Confidence if a CPU quota, which the kernel counts, explains the excess, however much times vary."""
IDLE = 0.2
"""A device that has nothing to do for this much more of the time than its peers' waits for its host."""
AHEAD = 0.5
"""A host that has enqueued a collective this part of a step before its device comes to it is well ahead."""
CHANGED, SAME = 1.15, 1.1
"""A rank has changed from so much more than its own time of before, and is the same up to so much."""
RECENT_OWN = 16
SET_FROM = 3
"""More late ranks than this are reported as one set."""
_SHOWN = 16
UNEVEN_SPREAD = 0.08
UNEVEN_LOSS = 0.15


def stragglers(windows: Sequence[RankWindow], limits: SlowLimits) -> list[Finding]:
    """Findings for every late rank, and for roles in which a different rank is late every time."""
    found: list[Finding] = []
    roles = by_role(windows)
    for peers in [Peers.of(windows)] if len(roles) == 1 else map(Peers, roles.values()):
        named = _named(peers, limits)
        named = _together(named, peers) if len(named) > SET_FROM else named
        if not peers[0].role and any(w.pairs for w in peers):
            named = [_stage(one, peers) for one in named]
        found += named
        if not named:
            found += _periodic(peers, limits) or _uneven(peers)
    return found


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
        windows = [w for w in peers if w.rank in set(ranks)]
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


def _stage(one: Finding, peers: Sequence[RankWindow]) -> Finding:
    """Ranks of a pipeline that does not report its roles: the slower may just have more work."""
    windows = [w for w in peers if w.rank in set(one.ranks)]
    ratio = float(one.inputs["ratio"])
    take, slow = ("takes", "it is slow") if len(windows) == 1 else ("take", "they are slow")
    return replace(
        one,
        kind="data-imbalance",
        sentence=f"{words.whom(windows)} {take} {ratio:.2f}× the time of the other ranks of the pipeline: "
        f"its stages are uneven, or {slow} (report roles with loom.role to find out)",
        confidence=min(one.confidence, 0.7),
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
    others = [ratio for r, ratio in known.items() if r not in slower]
    if not slower or len(known) < len(windows) or len(slower) > len(known) / 2 or max(others) > SAME:
        return []
    blamed = [w for w in windows if w.rank in slower]
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
        if cost.share < limits.matters or _one_group(peers, set(named)):
            named = {}  # without them the job would be no faster, or it is what they share that is slow
        named |= {one.rank: one for one in stopped if one.rank not in named}
        if stopped:
            cost = what_if(peers, named)
        calm = [w for w in peers if w.rank not in named]
        usual = _Usual(calm, late[0].steps if late else MAX_STEPS)
        found = {rank: _explain(by_rank[rank], one, usual, cost) for rank, one in named.items()}
        told = [finding for finding in found.values() if finding is not None]
        if len(told) == len(found):
            return told
        late = [one for one in late if found.get(one.rank, ()) is not None]
        stopped = [one for one in stopped if found[one.rank] is not None]
    return []


def _late(peers: Sequence[RankWindow], limits: SlowLimits) -> list[Late]:
    """Those that stand out one by one; or, where these are only a part of it, the whole set that is slow."""
    late, whole = localise(peers, limits), lasting_set(peers, limits)
    return whole if {one.rank for one in late} < {one.rank for one in whole} else late


def _one_group(peers: Sequence[RankWindow], late: set[int]) -> bool:
    """Whether the late ranks are most of one group: then their group's communication is slow, not they."""
    if len(late) <= 2:
        return False
    members: dict[str, set[int]] = {}
    for window in peers:
        for group in window.groups:
            members.setdefault(group.name, set()).add(window.rank)
    some = [m for m in members.values() if len(m) < len(peers)]
    return any(late <= m and 2 * len(late) > len(m) for m in some)


class _Usual:
    """What ranks that are not late take, worked out once for all that are."""

    def __init__(self, calm: Sequence[RankWindow], steps: int) -> None:
        self.calm = calm
        self.data = _median([s.data_wait_ns for w in sample(calm) for s in w.steps[-steps:]])
        self.cpu = _median([w.process.cpu_ns_per_step for w in calm])
        self.delay = _median([w.process.run_delay_ns_per_step for w in calm])
        self.throttled = _median([w.process.throttled_ns_per_step for w in calm])
        self.work = _median([w.work_per_step for w in calm])
        idle = [w.accelerator.idle for w in calm if w.accelerator is not None]
        self.idle = _median(idle) if idle else None


def _explain(window: RankWindow, late: Late, usual: _Usual, cost: Cost) -> Finding | None:
    """None where nothing sets the rank apart but chance on a crowded host."""
    steps, calm = late.steps, usual.calm
    data = _median([s.data_wait_ns for s in window.steps[-steps:]]) - usual.data
    # On a busy host a rank that computes more also waits more for a CPU, and long computations wait longer
    # than the short ones of the peers: of its waiting as much belongs to the additional computation as that
    # has of its CPU time. Contention alone does not make anybody compute more.
    own, own_delay = window.process.cpu_ns_per_step, window.process.run_delay_ns_per_step
    calm_cpu, calm_delay = usual.cpu, usual.delay
    crowded = calm_delay >= late.excess_ns
    same = SAME_CPU_IF_CROWDED if crowded else SAME_CPU
    more_cpu = own - calm_cpu if own - calm_cpu > same * calm_cpu else 0.0
    caused = own_delay * more_cpu / max(1.0, own)
    delay = own_delay - calm_delay - caused
    cpu = more_cpu + caused
    throttled = window.process.throttled_ns_per_step - usual.throttled
    work = window.work_per_step / max(1e-9, usual.work) if calm else 0.0
    if _is_behind(window):
        data = delay = throttled = 0.0
    more, whole = late.excess_ns / 1e9, max(1.0, late.excess_ns)
    kind: FindingKind
    by_quota = throttled >= max(data, EXPLAINS_A_RANK * whole)
    if by_quota:
        kind, why = (
            "host-contention",
            f"the CPU quota of its cgroup stops it for {words.lasting(throttled / 1e9)}",
        )
    elif data >= max(delay, EXPLAINS_A_RANK * whole):
        kind, why = "data-slow", f"it waits {words.lasting(data / 1e9)} longer for data"
    elif window.work_per_step and work > 1 and log(work) >= EXPLAINS * log(late.ratio):
        kind, why = "data-imbalance", f"it gets {work:.2f}× the work of its peers"
    elif _waits_for_host(window, usual):
        kind, why = "host-contention", "its device waits for its host, which launches too slowly"
    elif delay >= EXPLAINS_A_RANK * whole:
        kind, why = "host-contention", f"it wants a CPU and has none for {words.lasting(delay / 1e9)}"
    elif window.device.startswith("GPU") or window.accelerator is not None or cpu >= EXPLAINS_A_RANK * whole:
        kind, why = "compute-slow", "its computation takes longer"
    elif crowded:
        return None  # all wait for a core, and it does not wait longer than they: no one's fault
    else:
        kind, why = (
            "compute-slow",
            "neither data, CPU time nor waiting for a core explains it: its own code waits or sleeps",
        )
    if late.score is None and not by_quota and not window.process.throttled_ns_per_step:
        how, confidence = "they and the others are apart in nearly all of them", 0.85
    elif late.score is not None:
        how = f"{late.score:.0f} robust standard deviations"
        confidence = min(0.99, 0.7 + 0.05 * (late.score / 6) + 0.2 * (late.share - 0.6) / 0.4)
    else:
        how = f"and the kernel counts {words.lasting(window.process.throttled_ns_per_step / 1e9)} a step "
        how += "that its CPU quota took"
        confidence = COUNTED if by_quota else 0.7
    return Finding(
        kind=kind,
        ranks=(window.rank,),
        node=window.node,
        sentence=f"{words.who(window)} takes {late.ratio:.2f}× the time of its peers "
        f"({words.lasting(more)} a step more): {why}; this costs {cost.lost_steps_per_s:.3g} steps/s, "
        f"{cost.share:.0%} of the job's speed",
        confidence=confidence,
        certainty="slowness is reported, never certain",
        evidence=(Evidence(window.rank, f"late in {late.share:.0%} of {steps} steps, {how}"),),
        inputs={
            "ratio": late.ratio,
            **({} if late.score is None else {"score": late.score}),
            "excess_s": more,
            "data_s": data / 1e9,
            "cpu_s": cpu / 1e9,
            "run_delay_s": delay / 1e9,
            "throttled_s": throttled / 1e9,
            "cost": cost.share,
            "lost_steps_per_s": cost.lost_steps_per_s,
        },
    )


def _waits_for_host(window: RankWindow, usual: _Usual) -> bool:
    """Whether its device has nothing to do for a good part of the time, and those of its peers have: a device
    that waits for others in a collective is not idle."""
    if window.accelerator is None:
        return False
    return usual.idle is not None and window.accelerator.idle > usual.idle + IDLE


def _is_behind(window: RankWindow) -> bool:
    """Whether its host is well ahead of its device: then nothing that delays the host delays the step."""
    if window.accelerator is None or not window.steps:
        return False
    ahead = window.accelerator.lead_ns > AHEAD * _median([s.step_ns for s in window.steps])
    return ahead and window.accelerator.idle < IDLE


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
