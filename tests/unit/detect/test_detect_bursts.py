"""A rank that is slow now and then, without a period: named if it is always the same one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from detect_windows import SECOND, stepping, window
from msgspec.structs import replace

from torchloom.core.detect.attribute import stragglers
from torchloom.core.detect.bursts import SPAN, LongSteps
from torchloom.core.detect.judge import AllLimits, Memory, judge
from torchloom.core.detect.slow import SlowLimits
from torchloom.model.findings import Finding
from torchloom.model.windows import ProcessFacts, RankWindow, StepTimes

STEP_S = 0.03
Longer = Callable[[int, int, random.Random], float]
"""What a step of a rank takes more."""


def trained(
    ranks: int,
    longer: Longer,
    *,
    seed: int = 1,
    steps: int = 400,
    facts: dict[int, ProcessFacts] | None = None,
) -> list[Finding]:
    """The findings of the last look at a job whose ranks wait for the slowest one in every step."""
    chance = random.Random(seed)
    kept: dict[int, list[StepTimes]] = {rank: [] for rank in range(ranks)}
    memory, found = Memory(), list[Finding]()
    for step in range(1, steps + 1):
        own = [STEP_S * chance.lognormvariate(0, 0.05) + longer(r, step, chance) for r in range(ranks)]
        for rank, took in enumerate(own):
            ns, wait = round(max(own) * SECOND), round((max(own) - took) * SECOND)
            kept[rank] = [*kept[rank], StepTimes(step, ns, 0, wait)][-32:]
        if step % 16 == 0:
            memory, found = judge(
                [_window(r, kept[r], step, (facts or {}).get(r, ProcessFacts())) for r in range(ranks)],
                memory,
                AllLimits(),
            )
    return found


def _window(rank: int, steps: list[StepTimes], done: int, facts: ProcessFacts) -> RankWindow:
    return window(rank, steps=tuple(steps), steps_done=done, process=facts, groups=())


def stop(rank: int, step: int, chance: random.Random) -> float:
    """Rank 1 is stopped for 0.1 s about twice a second."""
    return 0.1 if rank == 1 and chance.random() < 1 / 13 else 0.0


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("seed", range(4))
def test_the_one_rank_that_takes_long_now_and_then_is_named(ranks: int, seed: int) -> None:
    (found,) = trained(ranks, stop, seed=seed)
    assert (found.kind, found.ranks) == ("compute-slow", (1,))
    assert "longer than its peers now and then" in found.sentence and not found.may_act
    assert float(found.inputs["cost"]) > 0.1


def test_what_stops_and_continues_it_is_named_and_suffices_earlier() -> None:
    (found,) = trained(2, stop, steps=128, facts={1: ProcessFacts(stops=4)})
    assert (found.kind, found.ranks) == ("host-contention", (1,))
    assert "something stops and continues it" in found.sentence and "4 of 20 looks" in found.sentence


def test_a_rank_whose_core_others_take_now_and_then_says_so() -> None:
    (found,) = trained(2, stop, facts={1: ProcessFacts(run_delay_ns_per_step=8 * 10**6)})
    assert (found.kind, found.ranks) == ("host-contention", (1,))
    assert "it wants a CPU and has none for 8 ms a step more than they" in found.sentence
    both = {rank: ProcessFacts(run_delay_ns_per_step=8 * 10**6) for rank in range(2)}
    (found,) = trained(2, stop, facts=both)
    assert found.kind == "compute-slow", "the other one waits as long"


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("seed", range(6))
def test_long_steps_of_all_ranks_are_chance(ranks: int, seed: int) -> None:
    def collect(rank: int, step: int, chance: random.Random) -> float:
        return 0.1 if chance.random() < 1 / 40 else 0.0

    assert [f for f in trained(ranks, collect, seed=seed) if f.ranks] == []


@pytest.mark.parametrize(("every", "seconds"), [(200, 0.5), (25, 0.15), (25, 2.0), (15, 2.0)])
def test_saves_of_one_rank_are_not_worth_a_word(every: int, seconds: float) -> None:
    def save(rank: int, step: int, chance: random.Random) -> float:
        return seconds if rank == 0 and step % every == 0 else 0.0

    assert trained(4, save, steps=640) == []


def test_one_long_spell_is_not_now_and_then() -> None:
    def spell(rank: int, step: int, chance: random.Random) -> float:
        return 0.1 if rank == 1 and 100 <= step < 120 else 0.0

    assert [f for f in trained(4, spell, steps=208) if f.ranks] == []


def test_it_is_over_when_there_was_none_for_a_while() -> None:
    def once(rank: int, step: int, chance: random.Random) -> float:
        return stop(rank, step, chance) if step < 200 else 0.0

    assert [f for f in trained(2, once, steps=200 + SPAN) if f.ranks] == []


def test_who_is_stopped_in_every_step_is_named_with_that_reason() -> None:
    facts = ProcessFacts(stops=9)
    windows = [stepping(0, [0.03] * 32), replace(stepping(1, [0.06] * 32), process=facts)]
    (found,) = stragglers(windows, SlowLimits())
    assert (found.kind, found.ranks) == ("host-contention", (1,))
    assert "found stopped in 9 of 20 looks" in found.sentence


def test_nothing_is_remembered_of_a_crowd() -> None:
    memory = Memory(long=LongSteps())
    chance = random.Random(3)
    windows = []
    for rank in range(64):
        times = [0.03 * (3 if chance.random() < 0.1 else 1) for _ in range(32)]
        windows.append(stepping(rank, times, step_s=0.1))
    memory, _ = judge([replace(w, role="", groups=()) for w in windows], memory, AllLimits())
    assert memory.long.by_rank == {} and memory.long.step == 32
