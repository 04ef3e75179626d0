"""Why a rank, or the whole job, is slow: turns what slow.py measured into findings with a cause.

A cause must explain a good part of the excess over the peers. It need not explain most of it, because a wait
in asynchronous collectives can be counted twice (see `waited_ns`). What nothing explains is said to be so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

from torchloom.core.detect import words
from torchloom.core.detect.cost import Cost, what_if
from torchloom.core.detect.robust import median
from torchloom.core.detect.slow import SETTLED, Late, SlowLimits, Trigger, held_back, localise, unevenness
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
"""How sure a quota is that the kernel counts and that explains the excess, however much times vary."""
IDLE = 0.2
"""A device that has nothing to do for this much more of the time than its peers' waits for its host."""
AHEAD = 0.5
"""A host that has enqueued a collective this part of a step before its device comes to it is well ahead."""
UNEVEN_SPREAD = 0.08
UNEVEN_LOSS = 0.15


def stragglers(windows: Sequence[RankWindow], limits: SlowLimits) -> list[Finding]:
    """Findings for every late rank, and for roles in which a different rank is late every time."""
    found: list[Finding] = []
    for peers in by_role(windows).values():
        found += _named(peers, limits) or _uneven(peers)
    return found


def _named(peers: Sequence[RankWindow], limits: SlowLimits) -> list[Finding]:
    """The late ranks of one role. Who is excused is one of the others: for what peers take, and for what the
    job would be without the late ones."""
    late, stopped = localise(peers, limits), held_back(peers, limits)
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
        found = {rank: _explain(by_rank[rank], one, calm, cost) for rank, one in named.items()}
        told = [finding for finding in found.values() if finding is not None]
        if len(told) == len(found):
            return told
        late = [one for one in late if found.get(one.rank, ()) is not None]
        stopped = [one for one in stopped if found[one.rank] is not None]
    return []


def _one_group(peers: Sequence[RankWindow], late: set[int]) -> bool:
    """Whether the late ranks are most of one group: then their group's communication is slow, not they."""
    members: dict[str, set[int]] = {}
    for window in peers:
        for group in window.groups:
            members.setdefault(group.name, set()).add(window.rank)
    return len(late) > 2 and any(late <= m and 2 * len(late) > len(m) for m in members.values())


def _explain(window: RankWindow, late: Late, calm: Sequence[RankWindow], cost: Cost) -> Finding | None:
    """None where nothing sets the rank apart but chance on a crowded host."""
    steps = late.steps
    data = _median([s.data_wait_ns for s in window.steps[-steps:]]) - _median(
        [s.data_wait_ns for w in calm for s in w.steps[-steps:]]
    )
    # On a busy host whoever computes more waits more for a CPU, too, and long computations wait longer than
    # the short ones of the peers: of its waiting as much belongs to the additional computation as that has of
    # its CPU time. Contention alone does not make anybody compute more.
    own, own_delay = window.process.cpu_ns_per_step, window.process.run_delay_ns_per_step
    calm_cpu = _median([w.process.cpu_ns_per_step for w in calm])
    calm_delay = _median([w.process.run_delay_ns_per_step for w in calm])
    crowded = calm_delay >= late.excess_ns
    same = SAME_CPU_IF_CROWDED if crowded else SAME_CPU
    more_cpu = own - calm_cpu if own - calm_cpu > same * calm_cpu else 0.0
    caused = own_delay * more_cpu / max(1.0, own)
    delay = own_delay - calm_delay - caused
    cpu = more_cpu + caused
    throttled = window.process.throttled_ns_per_step - _median(
        [w.process.throttled_ns_per_step for w in calm]
    )
    work = window.work_per_step / max(1e-9, _median([w.work_per_step for w in calm])) if calm else 0.0
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
    elif _waits_for_host(window, calm):
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
    if late.score is not None:
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


def _waits_for_host(window: RankWindow, calm: Sequence[RankWindow]) -> bool:
    """Whether its device has nothing to do for a good part of the time, and those of its peers have: a device
    that waits for others in a collective is not idle."""
    if window.accelerator is None:
        return False
    peers = [w.accelerator.idle for w in calm if w.accelerator is not None]
    return bool(peers) and window.accelerator.idle > _median(peers) + IDLE


def _is_behind(window: RankWindow) -> bool:
    """Whether its host is well ahead of its device: then nothing that delays the host delays the step."""
    if window.accelerator is None or not window.steps:
        return False
    ahead = window.accelerator.lead_ns > AHEAD * _median([s.step_ns for s in window.steps])
    return ahead and window.accelerator.idle < IDLE


def _uneven(peers: Sequence[RankWindow]) -> list[Finding]:
    uneven, loss = unevenness(peers)
    if uneven < UNEVEN_SPREAD or loss < UNEVEN_LOSS:
        return []
    own = _median([s.own_ns for w in peers for s in w.steps])
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


def _median(values: Sequence[float]) -> float:
    return median(values) if values else 0.0
