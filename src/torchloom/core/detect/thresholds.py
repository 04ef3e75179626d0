"""How long is too long: limits learned from the job's own steps, phases and pauses. Judges nobody.

There are two limits for everything: after the first a detector *says*, after the second somebody may *act*.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

RECENT_STEPS = 512


class Limits(Struct, frozen=True, kw_only=True):
    """What a user may set."""

    hang_floor_s: float = 2.0
    hang_cap_s: float = 600.0
    """No learned limit for saying is ever above it."""
    hang_act_s: float = 600.0
    """After this, uncertain evidence suffices."""
    steps_factor: float = 3.0
    """A wait is remarkable after this many of the job's slowest (p99) steps."""
    pause_factor: float = 1.5
    """A pause is remarkable again when it is this much longer than the longest one from which the same code
    came back."""
    start_steps: int = 20
    start_report_s: float = 60.0
    start_act_s: float = 600.0
    quiet_report_s: float = 30.0
    """When no rank waits for another, less silence than this is not worth a word: it may be an evaluation."""
    announced_report_s: float = 60.0
    """For a phase that the script announced and whose length is not known yet."""
    frozen_samples: int = 5
    frozen_lock_s: float = 10.0
    """Unchanged for this long with nothing outside that could wake it: certain."""
    frozen_s: float = 90.0
    """Unchanged for this long, though something outside might still answer (a slow read, a sleep): certain.
    A read that blocks for a minute looks exactly like a read that never ends."""


class Pace(Struct, frozen=True):
    """What is known about a job's usual times."""

    steps: int = 0
    recent_s: tuple[float, ...] = ()
    pauses_s: dict[str, float] = {}
    """Longest pause that ended by itself, per code location or announced phase."""


class Limit(Struct, frozen=True):
    """When to say and when to act, with the reason for the first."""

    report_s: float
    act_s: float
    why: str
    excused: bool = False
    """The rank announced what it is doing."""


EXCUSED = frozenset({"control-wait", "paused"})
"""Phases that the control plane itself causes: never a hang, however long."""
PLAIN = frozenset({"training", "data-wait", "none", ""})


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


def limit(pace: Pace, limits: Limits, *, phase: str, location: str) -> Limit:
    """The limits for waiting for a rank that is in `phase` and, as far as known, at `location`."""
    if phase in EXCUSED:
        return Limit(float("inf"), float("inf"), f"{phase} is caused by the control plane", True)
    if pace.steps < limits.start_steps:
        why = f"fewer than {limits.start_steps} steps are known"
        return Limit(limits.start_report_s, limits.start_act_s, why)
    usual = max(limits.steps_factor * p99_s(pace), limits.hang_floor_s)
    why = f"{limits.steps_factor:g} × the slowest usual step, at least {limits.hang_floor_s:g} s"
    announced = phase not in PLAIN
    where = phase if announced else location
    known = limits.pause_factor * pace.pauses_s.get(where, 0.0)
    if announced:
        usual, why = max(usual, known or limits.announced_report_s), f"the phase {phase} was announced"
    elif known > usual:
        usual, why = known, f"{limits.pause_factor:g} × the longest pause at {where}"
    report = min(usual, limits.hang_cap_s)
    return Limit(report, max(limits.hang_act_s, report, known), why, announced)


def certain_report_s(pace: Pace, limits: Limits) -> float:
    """When to say what nothing benign looks like: no excuse and no slow start can explain it."""
    return min(max(limits.steps_factor * p99_s(pace), limits.hang_floor_s), limits.hang_cap_s)


def frozen_after_s(pace: Pace, limits: Limits, *, location: str, waits_on: str) -> float:
    """How long evidence must be unchanged before a living process counts as frozen for good."""
    least = limits.frozen_lock_s if waits_on == "lock" else limits.frozen_s
    return max(least, limits.pause_factor * pace.pauses_s.get(location, 0.0))
