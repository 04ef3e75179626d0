"""Why a rank is late: which part of its step explains what it takes more than others.

A cause must explain a good part of the excess over the peers. It need not explain most of it, because a wait
in asynchronous collectives can be counted twice (see `waited_ns`). An unexplained excess is reported so.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from msgspec import Struct

from torchloom.core.detect import words
from torchloom.core.detect.board import DEBUGGED, DEVICE, WindowBoard
from torchloom.core.detect.bursts import is_stopped_often
from torchloom.core.detect.cost import Cost
from torchloom.core.detect.own_times import Peers
from torchloom.core.detect.robust import median
from torchloom.core.detect.slow import Late
from torchloom.core.detect.window import RankWindow
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
_TRACERS = 3
AHEAD = 0.5
"""A host that has enqueued a collective this part of a step before its device comes to it is well ahead."""


class Usual:
    """What ranks that are not late take, worked out once for all that are."""

    def __init__(self, calm: Sequence[RankWindow], steps: int) -> None:
        self.calm = calm = Peers.of(calm)
        board = calm.board
        self.data = calm.sampled_ns(steps)[1]
        self.cpu = _median(calm.of_rows(board.cpu_ns()))
        self.delay = _median(calm.of_rows(board.run_delays_ns()))
        self.throttled = _median(calm.of_rows(board.throttled_ns()))
        self.work = _median(calm.of_rows(board.work()))
        some = calm if board.marked(DEVICE) else ()
        idle = [w.accelerator.idle for w in some if w.accelerator is not None]
        self.idle = _median(idle) if idle else None


class Spent(Struct, frozen=True, gc=False):
    """What a late rank takes in a step."""

    data_ns: float
    """Waiting for data."""
    cpu_ns: float
    delay_ns: float
    """Waiting for a CPU."""
    throttled_ns: float

    @staticmethod
    def of(window: RankWindow, data_ns: float) -> Spent:
        facts = window.process
        return Spent(data_ns, facts.cpu_ns_per_step, facts.run_delay_ns_per_step, facts.throttled_ns_per_step)


class Cause(Struct, frozen=True, gc=False):
    """Why a rank is late. Of thousands of them only some are put into words."""

    window: RankWindow
    late: Late
    kind: FindingKind
    why: str
    by_quota: bool
    data_ns: float
    cpu_ns: float
    delay_ns: float
    throttled_ns: float
    quota_ns: float
    """What its CPU quota takes of a step, and not only more than that of its peers."""

    @property
    def confidence(self) -> float:
        if self._apart:
            return 0.85
        if self.late.score is not None:
            return min(0.99, 0.7 + 0.05 * (self.late.score / 6) + 0.2 * (self.late.share - 0.6) / 0.4)
        return COUNTED if self.by_quota else 0.7

    @property
    def _apart(self) -> bool:
        counted = self.by_quota or self.quota_ns
        return self.late.score is None and not counted

    def evidence(self) -> Evidence:
        late = self.late
        if late.score is None and self.window.process.tracer:
            how = f"and {self.window.process.tracer} traces it"
        elif late.score is None and is_stopped_often(self.window):
            how = f"and it was found stopped in {self.window.process.stops} looks"
        elif self._apart:
            how = "they and the others are apart in nearly all of them"
        elif late.score is not None:
            how = f"{late.score:.0f} robust standard deviations"
        else:
            counted = words.lasting(self.quota_ns / 1e9)
            how = f"and the kernel counts {counted} a step that its CPU quota took"
        return Evidence(self.window.rank, f"late in {late.share:.0%} of {late.steps} steps, {how}")

    def finding(self, cost: Cost) -> Finding:
        window, late, more = self.window, self.late, self.late.excess_ns / 1e9
        return Finding(
            kind=self.kind,
            ranks=(window.rank,),
            node=window.node,
            sentence=f"{words.who(window)} takes {late.ratio:.2f}× the time of its peers "
            f"({words.lasting(more)} a step more): {self.why}; {_costs(cost)}",
            confidence=self.confidence,
            certainty="slowness is reported, never certain",
            evidence=(self.evidence(),),
            inputs={
                "ratio": late.ratio,
                **({} if late.score is None else {"score": late.score}),
                "excess_s": more,
                "data_s": self.data_ns / 1e9,
                "cpu_s": self.cpu_ns / 1e9,
                "run_delay_s": self.delay_ns / 1e9,
                "throttled_s": self.throttled_ns / 1e9,
                "cost": cost.share,
                "lost_steps_per_s": cost.lost_steps_per_s,
            },
        )


def explain(window: RankWindow, late: Late, usual: Usual, spent: Spent) -> Cause | None:
    """Of the window only what an outline has (`WindowBoard.outline`). None where nothing sets the rank apart
    but chance on a crowded host."""
    calm = usual.calm
    data = spent.data_ns - usual.data
    # On a busy host a rank that computes more also waits more for a CPU, and long computations wait longer
    # than the short ones of the peers: of its waiting as much belongs to the additional computation as that
    # has of its CPU time. Contention alone does not make anybody compute more.
    own, own_delay = spent.cpu_ns, spent.delay_ns
    calm_cpu, calm_delay = usual.cpu, usual.delay
    crowded = calm_delay >= late.excess_ns
    same = SAME_CPU_IF_CROWDED if crowded else SAME_CPU
    more_cpu = own - calm_cpu if own - calm_cpu > same * calm_cpu else 0.0
    caused = own_delay * more_cpu / max(1.0, own)
    delay = own_delay - calm_delay - caused
    cpu = more_cpu + caused
    throttled = spent.throttled_ns - usual.throttled
    work = window.work_per_step / max(1e-9, usual.work) if calm else 0.0
    if _is_behind(window):
        data = delay = throttled = 0.0
    whole = max(1.0, late.excess_ns)
    kind: FindingKind
    by_quota = throttled >= max(data, EXPLAINS_A_RANK * whole)
    if by_quota:
        kind, why = (
            "host-contention",
            f"the CPU quota of its cgroup stops it for {words.lasting(throttled / 1e9)}",
        )
    elif is_stopped_often(window):
        kind, why = "host-contention", words.stopped_often(window)
    elif data >= max(delay, EXPLAINS_A_RANK * whole):
        kind, why = "data-slow", f"it waits {words.lasting(data / 1e9)} longer for data"
    elif window.work_per_step and work > 1 and log(work) >= EXPLAINS * log(late.ratio):
        kind, why = "data-imbalance", f"it gets {work:.2f}× the work of its peers"
    elif _waits_for_host(window, usual):
        kind, why = "host-contention", "its device waits for its host, which launches too slowly"
        if delay >= EXPLAINS_A_RANK * whole:
            none = words.lasting(delay / 1e9)
            why = f"its device waits for its host, which wants a CPU and has none for {none}"
    elif delay >= EXPLAINS_A_RANK * whole:
        kind, why = "host-contention", f"it wants a CPU and has none for {words.lasting(delay / 1e9)}"
    elif window.device.startswith("GPU") or window.accelerator is not None or cpu >= EXPLAINS_A_RANK * whole:
        kind, why = "compute-slow", "its computation takes longer"
    elif window.process.tracer:
        kind, why = "host-contention", "neither data, CPU time nor waiting for a core explains it"
    elif crowded:
        return None  # all wait for a core, and it does not wait longer than they: no one's fault
    else:
        kind, why = (
            "compute-slow",
            "neither data, CPU time nor waiting for a core explains it: its own code waits or sleeps",
        )
    return Cause(window, late, kind, why, by_quota, data, cpu, delay, throttled, spent.throttled_ns)


def _costs(cost: Cost) -> str:
    if cost.share >= 0.005:
        return f"this costs {cost.lost_steps_per_s:.3g} steps/s, {cost.share:.0%} of the job's speed"
    return "the job loses no speed to it yet, because in most steps some other rank takes as long by chance"


def _waits_for_host(window: RankWindow, usual: Usual) -> bool:
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


TRACED = 0.6
"""Confidence that a tracer is the reason: it is seen, and what it costs is not."""


def traced(found: Sequence[Finding], windows: Sequence[RankWindow]) -> list[Finding]:
    """While somebody traces ranks (strace, a debugger), the slowness of the job, of its transfers or of these
    ranks is explained by it: each system call costs them a multiple. Nobody is moved or restarted for it."""
    by = WindowBoard.of(windows).with_mark(DEBUGGED)
    ranks = {w.rank for w in by}
    theirs = [f for f in found if f.traits.whole_job or (f.ranks and set(f.ranks) <= ranks)]
    if not by or not theirs:
        return list(found)
    first = theirs[0]
    tracers = sorted({w.process.tracer for w in by})
    who = " and ".join(tracers[:_TRACERS])
    said = Finding(
        kind="host-contention",
        ranks=tuple(sorted(ranks)),
        node=words.node_of(by),
        sentence=f"{who} trace{'s' * (len(tracers) == 1)} {words.whom(by)}, which makes every system call "
        f"slower; {first.sentence}",
        confidence=TRACED,
        certainty="what the tracer costs cannot be measured",
        evidence=tuple(Evidence(w.rank, f"{w.process.tracer} traces it") for w in by),
        inputs=first.inputs,
    )
    return [said, *(f for f in found if f not in theirs)]


def measured(finding: Finding) -> bool:
    """Whether what makes it late was measured itself (data, waiting for a core, a quota), and is not only
    what is left of its time: nobody has more of that because there is more to compute."""
    least = EXPLAINS_A_RANK * float(finding.inputs.get("excess_s", 0.0))
    if finding.kind == "data-slow":
        return True
    return finding.kind == "host-contention" and (
        max(float(finding.inputs.get("run_delay_s", 0.0)), float(finding.inputs.get("throttled_s", 0.0)))
        >= least
    )


def _median(values: Sequence[float]) -> float:
    return median(values) if values else 0.0
