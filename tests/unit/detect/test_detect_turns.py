"""Slow ranks that flicker are one fault, and one that is slow after another is none of it."""

from __future__ import annotations

import random
from collections.abc import Callable

from torchloom.core.detect.judge import AllLimits, Memory, judge
from torchloom.core.detect.window import GroupPosition, RankWindow, StepTimes
from torchloom.core.policy.reporting import Seen, choose

MS = 10**6
RANKS = 4


def reported(
    slow: Callable[[int], str], seconds: float = 32.0, seed: int = 0
) -> list[tuple[float, tuple[int, ...]]]:
    """When which ranks are reported, of a job of four in which `slow` says who is slow in a step."""
    noise, memory = random.Random(seed), Memory()
    faults: dict[str, Seen] = {}
    steps: dict[int, list[StepTimes]] = {rank: [] for rank in range(RANKS)}
    now_s, look_s, step, found_at = 0.0, 0.5, 0, []
    while now_s < seconds:
        step += 1
        own = [34 * MS * noise.gauss(1, 0.05) + 30 * MS * (str(r) in slow(step)) for r in range(RANKS)]
        took = round(max(own)) + MS
        for rank in range(RANKS):
            steps[rank] = [*steps[rank][-31:], StepTimes(step, took, 0, round(took - own[rank]))]
        now_s += took / 1e9
        if now_s < look_s:
            continue
        look_s, taken_ns = now_s + 0.5, round((1000 + now_s) * 1e9)
        windows = [
            RankWindow(
                rank=rank,
                node="n",
                taken_ns=taken_ns,
                last_activity_ns=taken_ns,
                steps_done=step,
                steps=tuple(steps[rank]),
                groups=(GroupPosition("dp", RANKS, rank, step, step),),
            )
            for rank in range(RANKS)
        ]
        memory, found = judge(windows, memory, AllLimits())
        faults, say, _ = choose(faults, found, now_s=now_s, look=memory.localised_step)
        found_at += [(now_s, finding.ranks) for finding in say]
    return found_at


def flicker(block: int, seed: int) -> Callable[[int], str]:
    return lambda step: (
        random.Random(f"{seed} {step // block}").choice(("1", "2", "12")) if step > 100 else ""
    )


def test_ranks_that_are_slow_in_turn_are_one_fault() -> None:
    for block in (5, 20):
        for seed in range(2):
            found = reported(flicker(block, seed), seed=seed)
            assert found and found[0][1] == (1, 2) and found[0][0] < 30, (block, seed, found)


def test_one_that_is_slow_after_another_is_named_alone() -> None:
    found = reported(lambda step: "1" if 100 < step < 500 else "2" if step >= 500 else "", seconds=60)
    assert [ranks for _, ranks in found][:2] == [(1,), (2,)]


def test_one_that_flickers_alone_is_named_alone_and_nobody_in_a_healthy_job() -> None:
    assert {ranks for _, ranks in reported(lambda step: "1" if step > 100 and step // 5 % 2 else "")} == {
        (1,)
    }
    assert reported(lambda step: "") == []
