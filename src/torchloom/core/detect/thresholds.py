"""How long is too long: limits learned from the job's own steps, phases and pauses. Judges nobody.

There are two limits for everything: after the first a detector *reports*, after the second we may *act*.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

RECENT_STEPS = 512


class StuckLimits(Struct, frozen=True, kw_only=True):
    """What a user may set."""

    hang_floor_s: float = 2.0
    hang_cap_s: float = 600.0
    """No learned limit for reporting is ever above it."""
    hang_act_s: float = 600.0
    """After this long without a sign of life, uncertain evidence suffices …"""
    act_told: bool = False
    """… but, unless somebody set it, not before the process group itself would give up."""
    default_timeout_s: float = 1800.0
    """For a process group whose timeout is not known: torch's own for gloo, the longest of its defaults."""
    error_report_s: float = 1.0
    """A rank has left a collective with an error, and others have been in it for this long."""
    steps_factor: float = 3.0
    """A wait is remarkable after this many of the job's slowest (p99) steps."""
    pause_factor: float = 1.5
    """A pause is remarkable again when it is this much longer than the longest one from which the same code
    came back."""
    start_steps: int = 20
    start_report_s: float = 60.0
    start_act_s: float = 600.0
    quiet_report_s: float = 30.0
    """When no rank waits for another, less silence than this is not reported: it may be an evaluation."""
    joining_report_s: float = 30.0
    """For ranks that wait for others to make a process group with them."""
    announced_report_s: float = 60.0
    """For a phase that the script announced and whose length is not known yet."""
    compiling_report_s: float = 600.0
    """Large models compile for minutes, and say so."""
    frozen_samples: int = 5
    frozen_lock_s: float = 10.0
    """Unchanged for this long with nothing outside that could wake it: certain. What another process could
    still end (a slow read, a shared lock) never is, however long."""
    failed_script_s: float = 30.0
    """A rank whose script has failed and whose process lives on without a sign of life for this long is not
    at work: threads that train, or send a report, show life."""
    frozen_s: float = 90.0
    """Unchanged for this long: not at work, whatever it waits for."""


class Pace(Struct, frozen=True):
    """What is known about a job's usual times."""

    steps: int = 0
    recent_s: tuple[float, ...] = ()
    pauses_s: dict[str, float] = {}
    """Longest pause that ended by itself, per code location or announced phase."""


class Limit(Struct, frozen=True):
    """When to report and when to act, with the reason for the first."""

    report_s: float
    act_s: float
    why: str
    excused: bool = False
    """The rank announced what it is doing."""


EXCUSED = frozenset({"control-wait", "paused"})
"""Phases that the control plane itself causes: never a hang, however long."""
COMPILING = "compiling"
STORE_WAIT = "store-wait"
"""The script itself waits for its checkpoint store: `save(wait=True)`, or the end of the process."""
STORE_WAIT_S = 660.0
"""A minute more than such a wait takes at most (checkpoint/checkpoint.py). The worker reports what becomes of
the save, so this wait is no hang."""
JOINING = "joining"
PLAIN = frozenset({"training", "data-wait", "starting", "none", ""})
"""Nothing was announced. A program without an optimizer is `starting` for good."""


def with_steps(pace: Pace, step_s: Iterable[float], steps: int) -> Pace:
    """Learn from completed steps. The first one of a process is set-up and says nothing."""
    recent = (*pace.recent_s, *(s for s in step_s if s > 0))[-RECENT_STEPS:]
    return Pace(max(pace.steps, steps), recent, pace.pauses_s)


def with_pause(pace: Pace, where: str, lasted_s: float) -> Pace:
    """Learn that a pause at `where` ended by itself."""
    if not where or lasted_s <= pace.pauses_s.get(where, 0.0):
        return pace
    return replace(pace, pauses_s={**pace.pauses_s, where: lasted_s})


def p99_s(pace: Pace) -> float:
    if not pace.recent_s:
        return 0.0
    ordered = sorted(pace.recent_s)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


def act_after_s(limits: StuckLimits, told_s: float, timeout_s: float) -> float:
    """When uncertain evidence suffices: as set, else not before the process group itself would give up."""
    return told_s if limits.act_told else max(told_s, timeout_s or limits.default_timeout_s)


def limit(pace: Pace, limits: StuckLimits, *, phase: str, location: str, timeout_s: float = 0.0) -> Limit:
    """The limits for waiting for a rank that is in `phase` and, as far as known, at `location`, in a process
    group with this timeout (0: not known)."""
    if phase in EXCUSED:
        return Limit(float("inf"), float("inf"), f"{phase} is caused by the control plane", True)
    if phase == STORE_WAIT:
        act_s = act_after_s(limits, limits.hang_act_s, timeout_s)
        return Limit(STORE_WAIT_S, max(act_s, STORE_WAIT_S), "its wait for the store ends by itself", True)
    if pace.steps < limits.start_steps:
        why = f"fewer than {limits.start_steps} steps are known"
        report_s = limits.start_report_s
        if phase == COMPILING:
            report_s, why = max(report_s, limits.compiling_report_s), "it compiles"
        act_s = act_after_s(limits, limits.start_act_s, timeout_s)
        return Limit(report_s, max(act_s, report_s), why, phase == COMPILING)
    usual = max(limits.steps_factor * p99_s(pace), limits.hang_floor_s)
    why = f"{limits.steps_factor:g} × the slowest usual step, at least {limits.hang_floor_s:g} s"
    announced = phase not in PLAIN
    where = phase if announced else location
    known = limits.pause_factor * pace.pauses_s.get(where, 0.0)
    if announced:
        least = limits.compiling_report_s if phase == COMPILING else limits.announced_report_s
        usual, why = max(usual, known or least), f"the phase {phase} was announced"
    elif known > usual:
        usual, why = known, f"{limits.pause_factor:g} × the longest pause at {where}"
    report = min(usual, limits.hang_cap_s)
    act_s = act_after_s(limits, limits.hang_act_s, timeout_s)
    return Limit(report, max(act_s, report, known), why, announced)


def certain_report_s(pace: Pace, limits: StuckLimits) -> float:
    """When to report what nothing benign looks like: no excuse and no slow start can explain it."""
    return min(max(limits.steps_factor * p99_s(pace), limits.hang_floor_s), limits.hang_cap_s)


def frozen_after_s(pace: Pace, limits: StuckLimits, *, location: str) -> float:
    """How long a process that nothing outside can wake must be unchanged before it counts as frozen."""
    return max(limits.frozen_lock_s, limits.pause_factor * pace.pauses_s.get(location, 0.0))
