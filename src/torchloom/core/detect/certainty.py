"""Whether a rank that others wait for will certainly not arrive, and when uncertain evidence suffices.

A hang is certain only if nothing benign looks like it. A rank that shows life, is debugged, or could be woken
by another process is never certain to hang, and a rank that shows life is never acted on.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchloom.core.detect import words
from torchloom.core.detect.thresholds import Pace, StuckLimits, frozen_after_s
from torchloom.core.detect.window import RankWindow


def certainty(window: RankWindow, pace: Pace, limits: StuckLimits) -> tuple[bool, str]:
    """Whether this rank will certainly not arrive, and why (not)."""
    facts = window.process
    if window.left:
        return True, f"its process {window.left}"
    if window.dead:
        return True, "its process is dead"
    if facts.tracer:
        return False, f"{facts.tracer} debugs it and may let it continue"
    if facts.state == "T":
        return True, "its process is stopped"
    if facts.became:
        return False, f"its process has become another program ({facts.became}); the job may know of it"
    if window.accelerator is not None and window.accelerator.state == "failed":
        return True, f"its device failed ({window.accelerator.error or 'no reason given'})"
    if life := words.living(window):
        return False, f"it is at work: {life}"
    if facts.script_failed and facts.quiet_ns / 1e9 >= limits.failed_script_s:
        return True, (
            f"its script has failed ({facts.script_failed}), and the thread that keeps its process alive has "
            f"shown no sign of life for {words.lasting(facts.quiet_ns / 1e9)}"
        )
    if not facts.unchanged_samples:
        if facts.waits_for:
            return False, f"{facts.waits_for}; its stack could not be read"
        return False, "its process has not been sampled"
    if facts.waits_on == "timer":
        return False, "it sleeps, and a timer will wake it"
    unchanged_s = facts.unchanged_ns / 1e9
    if facts.waits_on == "lock":
        needed_s = frozen_after_s(pace, limits, location=facts.location)
        if facts.unchanged_samples >= limits.frozen_samples and unchanged_s >= needed_s:
            lasting = words.lasting(unchanged_s)
            return (
                True,
                f"{facts.waits_for or 'it waits for a lock'}; nothing outside of it can change that, "
                f"and nothing has changed for {lasting}",
            )
        return False, f"unchanged for {words.lasting(unchanged_s)} of {words.lasting(needed_s)}"
    if facts.unchanged_samples == 1:
        return False, "its process was at work when it was looked at before, or was looked at only once"
    if facts.waits_for:
        return False, f"{facts.waits_for}, and that wait may still end"
    if unchanged_s > 0:
        return False, f"unchanged for {words.lasting(unchanged_s)}, but something outside may wake it"
    return False, "its process is at work"


def may_act(windows: Sequence[RankWindow], lasting_s: float, act_s: float) -> bool:
    """Whether uncertain evidence has lasted for long enough: the limit counts from the last sign of life of
    any sampled rank, and a rank that somebody debugs is never acted on."""
    sampled = [w for w in windows if w.process.quiet_ns]
    if lasting_s < act_s or not sampled or any(w.process.tracer for w in windows):
        return False
    # Sampling begins when it is reported, and every two seconds: so much is known of the time before.
    return all(w.process.quiet_ns / 1e9 >= 0.8 * act_s for w in sampled)


def ended(window: RankWindow) -> bool:
    return window.dead or (window.process.state == "T" and not window.process.tracer)


def is_out(window: RankWindow) -> bool:
    """Whether it takes part no more, however short its pace is known: stopped, dead, or another program. The
    last may be meant, so it is not certain, but nothing that a program does by itself looks like it."""
    return ended(window) or bool(window.process.became)


def frozen(window: RankWindow, limits: StuckLimits) -> bool:
    """Whether nothing at all has changed in it for a while, and no timer will wake it."""
    facts = window.process
    still = facts.unchanged_samples >= limits.frozen_samples and facts.unchanged_ns / 1e9 >= limits.frozen_s
    return still and facts.waits_on != "timer"
