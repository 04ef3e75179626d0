"""Slowness that is told does not become usual while it lasts; what is meant so, or is over, soon does."""

from __future__ import annotations

import random
from collections.abc import Callable

from detect_windows import window

from torchloom.core.detect.judge import AllLimits, Memory, judge
from torchloom.model.windows import GroupPosition, StepTimes

A_LOOK = 8


def play(
    step_ms: Callable[[int], float],
    steps: int,
    transfer_ms: Callable[[int], float] = lambda step: 5.0,
    settings: Callable[[int], int] = lambda step: 1,
) -> list[tuple[int, str]]:
    """What is found after which step in a job of four ranks, of which nobody is late."""
    chance, memory, told = random.Random(1), Memory(), []
    times: list[int] = []
    for step in range(1, steps + 1):
        took_ms = (step_ms(step) + transfer_ms(step)) * chance.lognormvariate(0, 0.03)
        times.append(round(took_ms * 1e6))
        if step % A_LOOK:
            continue
        wait = round(transfer_ms(step) * 1e6)
        newest = tuple(StepTimes(n + 1, times[n], 0, wait) for n in range(max(0, step - 32), step))
        groups = [(GroupPosition("dp", 4, rank, step, step, wait),) for rank in range(4)]
        windows = [window(r, steps=newest, groups=groups[r], steps_done=step, role="a") for r in range(4)]
        memory, found = judge(windows, memory, AllLimits(), settings=settings(step))
        told += [(step, one.kind) for one in found]
    return told


def slow_from(first: int, last: int = 10**9) -> Callable[[int], float]:
    return lambda step: 100.0 if first <= step < last else 50.0


def test_slow_transfers_are_told_for_as_long_as_they_last() -> None:
    told = play(lambda step: 50.0, 1600, lambda step: 60.0 if 300 <= step < 1200 else 5.0)
    steps = [step for step, kind in told if kind == "communication-slow"]
    assert min(steps) < 340 and set(range(400, 1200, A_LOOK)) <= set(steps)
    assert max(steps) < 1260, "and soon not any more"


def test_so_is_a_job_that_is_slower_as_a_whole() -> None:
    told = play(slow_from(300, 1200), 1600)
    steps = [step for step, kind in told if kind == "global-slowdown"]
    assert set(range(400, 1200, A_LOOK)) <= set(steps) and max(steps) < 1260


def test_not_for_ever() -> None:
    """Half an hour of it: then it is how the job is, and what comes on top of it is seen."""
    told = play(lambda step: 5000.0 if step < 300 else 10_000.0 if step < 900 else 20_000.0, 1000)
    steps = {step for step, kind in told if kind == "global-slowdown"}
    assert {400, 480} <= steps and not steps & set(range(560, 890)) and 960 in steps


def test_what_follows_a_change_of_settings_may_be_meant_so() -> None:
    at_once = play(slow_from(300), 1000, settings=lambda step: 1 + (step >= 296))
    later = play(slow_from(300), 1400, settings=lambda step: 1 + (step >= 800))
    long_ago = play(slow_from(700), 1400, settings=lambda step: 1 + (step >= 400))
    assert at_once and max(step for step, _ in at_once) < 560
    assert 792 in {step for step, _ in later} and max(step for step, _ in later) < 1060
    assert 1400 in {step for step, _ in long_ago}


def test_a_calm_job_has_nothing_to_tell() -> None:
    assert play(lambda step: 50.0, 600) == []
