"""Transfers that became slow are seen in themselves, also where steps vary too much to tell anything."""

from __future__ import annotations

import random
from collections.abc import Callable

from detect_windows import window

from torchloom.core.detect.judge import AllLimits, Memory, judge
from torchloom.model.findings import Finding
from torchloom.model.windows import GroupPosition, ProcessFacts, StepTimes

A_LOOK = 8
SLOW = "communication-slow"
Of = Callable[[int], float]


def play(steps: int, transfer_ms: Of, delay_ms: Of = lambda step: 100.0) -> list[tuple[int, str]]:
    return [(step, one.kind) for step, one in hear(steps, transfer_ms, delay_ms) if one.kind == SLOW]


def hear(steps: int, transfer_ms: Of, delay_ms: Of, tracer: str = "") -> list[tuple[int, Finding]]:
    """What is found after which step in a job of two ranks on a crowded host, much as it was recorded: steps
    take 200 ms and a third more or less, now and then twice as long."""
    chance, memory = random.Random(3), Memory()
    told: list[tuple[int, Finding]] = []
    times: list[int] = []
    for step in range(1, steps + 1):
        own_ms = 200 * chance.lognormvariate(0, 0.35) * (2 if chance.random() < 0.1 else 1)
        times.append(round((own_ms + transfer_ms(step)) * 1e6))
        if step % A_LOOK:
            continue
        windows = []
        for rank in (0, 1):
            wait = round(transfer_ms(step) * chance.uniform(0.9, 1.1) * 1e6)
            newest = tuple(StepTimes(n + 1, times[n], 0, wait) for n in range(max(0, step - 32), step))
            groups = (GroupPosition("dp", 2, rank, step, step, wait),)
            facts = ProcessFacts(
                run_delay_ns_per_step=round(delay_ms(step) * 1e6), tracer=tracer if rank else ""
            )
            windows.append(window(rank, steps=newest, groups=groups, steps_done=step, process=facts))
        memory, found = judge(windows, memory, AllLimits())
        told += [(step, one) for one in found]
    return told


def raised(first: int, last: int = 10**9, to: float = 110.0) -> Of:
    return lambda step: to if first <= step < last else 28.0


def test_they_are_told_soon_and_for_as_long_as_it_lasts() -> None:
    steps = {step for step, _ in play(900, raised(200, 700))}
    assert 200 < min(steps) <= 240 and set(range(240, 700, A_LOOK)) <= steps and max(steps) < 720


def test_a_slow_rise_is_not_learned_on_the_way() -> None:
    slowly: Of = lambda step: 28.0 + min(82.0, max(0, step - 200) * 1.0)  # noqa: E731
    assert {step for step, _ in play(500, slowly)} >= set(range(304, 500, A_LOOK))


def test_transfers_that_wait_for_a_cpu_are_not_slow() -> None:
    assert play(500, raised(200), raised(200, to=300.0)) == []


def test_a_little_more_is_learned() -> None:
    assert play(900, raised(200, to=42.0)) == []


def test_what_is_short_beside_a_step_is_let_be() -> None:
    assert play(500, lambda step: 12.0 if step >= 200 else 3.0) == []


def test_a_moment_is_no_level() -> None:
    assert play(500, raised(200, 212)) == []


def test_a_rank_under_strace_is_named_instead() -> None:
    found = [one for _, one in hear(400, raised(200), lambda step: 100.0, "strace (pid 4711)")]
    assert found and {(f.kind, f.ranks) for f in found} == {("host-contention", (1,))}
    assert found[-1].sentence.startswith("strace (pid 4711) traces rank 1")
    assert not any(f.may_act or f.certain or f.confidence >= 0.8 for f in found)


def test_a_tracer_is_no_reason_where_nothing_is_slow() -> None:
    assert hear(400, lambda step: 28.0, lambda step: 100.0, "gdb (pid 4711)") == []
