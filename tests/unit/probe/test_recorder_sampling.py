"""The Python fallback's sampler keeps its cost within the budget. Time is made up."""

from __future__ import annotations

import pytest

from torchloom.probe.observe.fallback_recorder import BUDGET, HIDDEN_COST, START_BUDGET_NS, Sampler

MS = 1_000_000


def recorded_steps(step_ns: int, collectives: int, cost_ns: int, steps: int) -> tuple[list[int], float]:
    """Which steps are recorded when each takes `step_ns` and each record `cost_ns`, and the cost of all."""
    now = spent = 0
    sampler = Sampler(now)
    on, recorded = True, []
    for step in range(1, steps + 1):
        now += step_ns
        if on:
            recorded.append(step)
            for _ in range(collectives):
                spent += cost_ns
                if not sampler.spend(cost_ns, now):
                    break
        on = sampler.after_step(now)
    return recorded, spent * HIDDEN_COST


@pytest.mark.parametrize("step_ns", [1 * MS, 20 * MS, 1000 * MS])
@pytest.mark.parametrize("collectives", [1, 10, 300])
def test_the_cost_stays_within_the_budget(step_ns: int, collectives: int) -> None:
    cost_ns, steps = 15_000, 3000
    recorded, spent = recorded_steps(step_ns, collectives, cost_ns, steps)
    assert spent <= BUDGET * steps * step_ns + START_BUDGET_NS + cost_ns * HIDDEN_COST
    assert recorded, "something is recorded"


def test_cheap_enough_means_everything() -> None:
    assert recorded_steps(1000 * MS, 10, 15_000, 50)[0] == list(range(1, 51))


def test_ranks_with_different_periods_record_common_steps() -> None:
    slow, _ = recorded_steps(10 * MS, 4, 15_000, 2000)
    fast, _ = recorded_steps(10 * MS, 16, 15_000, 2000)
    later = {step for step in fast if step > 100}
    assert later
    assert later <= set(slow)
