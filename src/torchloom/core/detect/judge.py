"""All detectors in their order over one set of windows, and what must be remembered until the next set.

Pure: memory in, memory and findings out. What comes first explains what follows: after a death no rank is
reported to hang, and where ranks disagree or hang no slowness is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from torchloom.core.detect import words
from torchloom.core.detect.attribute import against_own_past, changed_ranks, slower_job, stragglers
from torchloom.core.detect.board import LEFT, PHASE, UNRECORDED, VALUES, WindowBoard
from torchloom.core.detect.bursts import LongSteps, note
from torchloom.core.detect.comparable import by_role
from torchloom.core.detect.counts import Tally, count
from torchloom.core.detect.crash import crashes, lost_nodes
from torchloom.core.detect.desync import desync
from torchloom.core.detect.failed import Reported, failed_collectives
from torchloom.core.detect.hang import hangs
from torchloom.core.detect.joining import not_joined
from torchloom.core.detect.numerics import Curves, broken_values, peaks_of, spikes
from torchloom.core.detect.own_times import Peers
from torchloom.core.detect.replicas import ReplicaMemory, compare
from torchloom.core.detect.robust import median
from torchloom.core.detect.slow import SlowLimits, Trigger, watch
from torchloom.core.detect.stages import uneven_stages
from torchloom.core.detect.still import silent_children
from torchloom.core.detect.thresholds import EXCUSED, PLAIN, Pace, StuckLimits, with_pause, with_steps
from torchloom.core.detect.transfers import (
    Level,
    expected_times,
    slow_transfers,
    usual_crowd,
    watch_levels,
)
from torchloom.core.detect.turns import Turns, in_turn
from torchloom.core.detect.unlike import other_operations
from torchloom.core.detect.watched_metrics import CURVES
from torchloom.core.detect.why_late import traced
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Finding

TRAINS_S, TRAINS_STEPS = 5.0, 10.0
"""No rank is called slow when none has moved for this long, in seconds and in usual steps."""
LOCALISE_EVERY = 4
"""Steps between two searches for stragglers: the search is the most expensive one, and not urgent."""
RECENT_STEPS = 16
"""Whose median is the pace now."""


class HeldRank(Struct, frozen=True):
    """A rank that others wait for, or that announced a phase: learned from when it ends by itself."""

    spent_s: dict[str, float]
    """Where it was seen, and for how long."""
    lasting_s: float
    steps_done: int

    @property
    def where(self) -> str:
        """Where it spent most of the time: the code that is known to take so long."""
        return max(self.spent_s, key=lambda place: (self.spent_s[place], place))


class Memory(Struct, frozen=True):
    """Everything the detectors remember about one generation of a job."""

    pace: Pace = Pace()
    beats: Pace = Pace()
    """The same of a program that makes no steps, by the collectives of its first rank …"""
    beat: tuple[int, int] = (0, 0)
    """… of which so many had been entered, when it was seen last that there were more."""
    trigger: Trigger = Trigger()
    curves: Curves = Curves()
    broken_runs: dict[int, int] = {}
    """By rank, the last run of values that are no numbers."""
    replicas: ReplicaMemory = ReplicaMemory()
    tallies: dict[str, Tally] = {}
    """By group, how many collectives its ranks have made."""
    transfers: dict[str, Level] = {}
    """By group, and by pair that sends."""
    held: dict[int, HeldRank] = {}
    failures: dict[int, Reported] = {}
    """By rank, what was reported of collectives that failed."""
    own_ns: dict[int, float] = {}
    """By rank, its usual own time of a step: what it is compared with where nobody does the same."""
    long: LongSteps = LongSteps()
    """Steps in which a rank took much longer than its peers."""
    turns: Turns = ()
    """Whom the newest looks found slow."""
    localised_step: int = 0
    slow: tuple[Finding, ...] = ()
    """What the last look for slowness found."""
    settings: int | None = None
    """The version of the job's settings."""
    changed_step: int | None = None
    """Completed steps when it changed last."""


class AllLimits(Struct, frozen=True):
    hang: StuckLimits = StuckLimits()
    slow: SlowLimits = SlowLimits()


def judge(
    windows: Sequence[RankWindow],
    memory: Memory,
    limits: AllLimits,
    *,
    unheard: Collection[str] = (),
    ranks_of: dict[str, tuple[int, ...]] | None = None,
    settings: int = 0,
) -> tuple[Memory, list[Finding]]:
    """What is wrong now. `unheard` are nodes without heartbeats, with their ranks in `ranks_of`. `settings`
    is the version of what people set while the job runs: it may make steps longer for good."""
    if not windows:
        return memory, lost_nodes(unheard, ranks_of or {})
    if settings != memory.settings:
        changed = memory.trigger.last_step if memory.settings is not None else None
        memory = replace(memory, settings=settings, changed_step=changed)
    windows = WindowBoard.of(windows)
    here = WindowBoard.of([w for w in windows if not w.left]) if windows.marked(LEFT) else windows
    memory = _learn(here, _learn_beats(here, memory), limits)
    memory, found = _numbers(here, memory)
    found += lost_nodes(unheard, ranks_of or {})
    gone = crashes(here)
    stuck = gone or _stuck(windows, memory, limits)
    memory = _remember_held(here, memory, [] if gone else stuck)
    failures, failed = failed_collectives(here, memory.failures, bool(stuck) or len(here) < len(windows))
    memory, found = replace(memory, failures=failures), [*found, *failed]
    if not stuck and len(here) == len(windows) and _trains(here, memory):
        memory = _look_for_slowness(here, memory, limits)
        found += traced(memory.slow, here)
    return memory, [*stuck, *found]


def _trains(windows: Sequence[RankWindow], memory: Memory) -> bool:
    """Whether steps are being made: after the last one nobody is slow, whatever its last steps took."""
    usual_s = median(memory.pace.recent_s[-RECENT_STEPS:]) if memory.pace.recent_s else 0.0
    within_s = max(TRAINS_S, TRAINS_STEPS * usual_s)
    return any(w.idle_s < within_s for w in windows)


def _stuck(windows: WindowBoard, memory: Memory, limits: AllLimits) -> list[Finding]:
    pace = memory.pace if windows.trains() else memory.beats
    if found := not_joined(windows, pace, limits.hang):
        return found
    if 0 < len(windows.marked(UNRECORDED)) < len(windows):
        return []  # a rank whose collectives are not recorded would look absent from all of them
    found = desync(windows, pace, limits.hang) or hangs(windows, pace, limits.hang)
    return found or silent_children(windows, limits.hang)


def _learn_beats(windows: WindowBoard, memory: Memory) -> Memory:
    """The pace of a program that makes no steps (no optimizer): how long it goes without a new collective."""
    if windows.trains():
        return memory
    first = windows[0]
    entered = sum(g.entered for g in first.groups)
    count, since_ns = memory.beat
    if entered == count:
        return memory
    gap_s = (first.taken_ns - since_ns) / 1e9
    beats = memory.beats
    if count and gap_s > 0:
        beats = with_steps(beats, [gap_s], beats.steps + 1)
    return replace(memory, beats=beats, beat=(entered, first.taken_ns))


def _learn(windows: WindowBoard, memory: Memory, limits: AllLimits) -> Memory:
    """Feed new steps of the job: the time of a step is the median over the ranks that completed it."""
    last = memory.trigger.last_step
    fresh = [(s, *windows.step_median_s(s)) for s in windows.by_most(last)]
    by_most = [(step, step_s) for step, count, step_s in fresh if count > len(windows) / 2]
    if not by_most:
        return memory
    trigger = memory.trigger
    steps, times = [step for step, _ in by_most], [step_s for _, step_s in by_most]
    lasts = _lasts(memory, limits.slow)
    for step, step_s in zip(steps, times, strict=True):
        trigger = watch(trigger, step, step_s, limits.slow, lasts)
    pace = with_steps(memory.pace, times, steps[-1])
    levels = watch_levels(
        windows,
        memory.transfers,
        limits.slow,
        step_s=median(pace.recent_s[-RECENT_STEPS:]),
        fresh_s=times,
        last_step=trigger.last_step,
        changed_step=memory.changed_step,
        learn=trigger.total == 0.0,
    )
    return replace(memory, pace=pace, trigger=trigger, transfers=levels)


def _lasts(memory: Memory, limits: SlowLimits) -> bool:
    """Whether the job was found to be slower, which must not become usual meanwhile. Where somebody changed
    the settings just before or since then, it may be meant so."""
    if not any(f.traits.whole_job for f in memory.slow):
        return False
    began = memory.trigger.last_step - memory.trigger.above
    return not limits.may_be_meant(began, memory.changed_step)


def _numbers(windows: WindowBoard, memory: Memory) -> tuple[Memory, list[Finding]]:
    runs, found = broken_values(windows, memory.broken_runs)
    replicas, differing = compare(windows, memory.replicas)
    tallies, behind = count(windows, memory.tallies)
    behind = behind or other_operations(windows)
    memory = replace(memory, broken_runs=runs, replicas=replicas, tallies=tallies)
    # Who left something out explains why replicas differ.
    found += [*behind, *differing]
    step = windows.newest_values_step() or memory.trigger.last_step
    if windows.marked(VALUES) and step > memory.curves.last_step:
        newest = {name: now for name in CURVES if (now := windows.value_median(name)) is not None}
        curves, jumped = spikes(memory.curves, step, newest, peaks_of(windows), words.offset_of(windows))
        return replace(memory, curves=curves), [*found, *jumped]
    return memory, found


def _look_for_slowness(board: WindowBoard, memory: Memory, limits: AllLimits) -> Memory:
    last = memory.trigger.last_step
    if last < memory.localised_step + LOCALISE_EVERY:
        return memory
    windows = Peers.of(board)
    long = note(by_role(windows).values(), memory.long)
    late = stragglers(windows, limits.slow, memory.own_ns, long)
    step_s = median(memory.pace.recent_s[-RECENT_STEPS:])
    slow = slow_transfers(board, memory.transfers, step_s)
    if slow:
        # Who receives slowly also computes a little more: what costs less than the transfers may come of it.
        longer_s = float(slow[0].inputs["longer_s"])
        found = [*(f for f in late if float(f.inputs.get("excess_s", 0.0)) > longer_s), *slow]
    else:
        found = late
        if not late and memory.trigger.alarmed:
            usual = expected_times(board, memory.transfers, step_s)
            found = slower_job(board, memory.trigger, usual, usual_crowd(memory.transfers))
        if any(f.kind == "global-slowdown" for f in found):
            found = changed_ranks(windows, memory.own_ns, memory.trigger) or [
                against_own_past(f, windows, memory.own_ns) for f in found
            ]
    found = found or uneven_stages(windows, limits.slow)
    turns, found = in_turn(found, board, memory.turns, memory.slow)
    own_ns = memory.own_ns
    # Who just has more work takes as long as usual.
    if memory.trigger.total == 0.0 and all(f.kind == "data-imbalance" for f in found):
        own_ns = {rank: _blend(own_ns.get(rank), now) for rank, now in windows.typical.items()}
    return replace(memory, localised_step=last, slow=tuple(found), own_ns=own_ns, long=long, turns=turns)


def _blend(before: float | None, now: float) -> float:
    return now if before is None else 0.8 * before + 0.2 * now


def _remember_held(windows: WindowBoard, memory: Memory, stuck: Sequence[Finding]) -> Memory:
    """Learn how long a pause was once its rank has moved on by itself."""
    blamed = {rank: f for f in stuck if f.kind in ("hang", "no-progress") for rank in f.ranks}
    held: dict[int, HeldRank] = {}
    pace = memory.pace
    told = windows.marked(PHASE)
    if not blamed and not memory.held and not told:
        return memory
    outlines = windows.outlines()
    ranks = [
        rank
        for row, rank in enumerate(windows.ranks)
        if rank in memory.held or row in told or (rank in blamed and outlines[row].process.location)
    ]
    for window in windows.sketches(ranks):
        before = memory.held.get(window.rank)
        announced = window.phase not in PLAIN and window.phase not in EXCUSED
        if announced:
            since = window.phase_since_ns or window.taken_ns
            lasting_s = (window.taken_ns - since) / 1e9
            held[window.rank] = HeldRank({window.phase: lasting_s}, lasting_s, window.steps_done)
        elif (finding := blamed.get(window.rank)) is not None and window.process.location:
            held[window.rank] = _longer(before, window, finding.lasting_s)
        elif before is not None and not window.dead:
            if window.steps_done > before.steps_done:
                pace = with_pause(pace, before.where, before.lasting_s)
            else:
                held[window.rank] = before  # it moves again, and its step is not complete yet
    if pace is memory.pace and held == memory.held:
        return memory
    return replace(memory, pace=pace, held=held)


def _longer(before: HeldRank | None, window: RankWindow, lasting_s: float) -> HeldRank:
    spent = {} if before is None or lasting_s < before.lasting_s else before.spent_s
    more = lasting_s - sum(spent.values())
    place = window.process.location
    return HeldRank({**spent, place: spent.get(place, 0.0) + more}, lasting_s, window.steps_done)
