"""A CPU quota is told from everything else by what the kernel counts for the cgroup."""

from __future__ import annotations

import random

import pytest
from detect_windows import SECOND, stepping

from torchloom.core.detect.attribute import stragglers
from torchloom.core.detect.slow import SlowLimits, localise
from torchloom.core.policy.rules import LIKELY
from torchloom.model.findings import Finding
from torchloom.model.windows import ProcessFacts, RankWindow

STEPS = 32


def crowded(seed: int, throttled_ms: dict[int, float], ratio: float = 1.2) -> list[RankWindow]:
    """Four ranks on two cores, as recorded: all wait for a core, and own times differ by a fifth anyway. The
    ranks under a quota take `ratio` as long."""
    found = []
    for rank in range(4):
        chance = random.Random(100 * seed + rank)
        usual = 0.045 * chance.uniform(0.92, 1.08) * (ratio if throttled_ms.get(rank) else 1.0)
        times = [usual * chance.lognormvariate(0, 0.25) for _ in range(STEPS)]
        facts = ProcessFacts(
            cpu_ns_per_step=round(0.016 * SECOND),
            run_delay_ns_per_step=round((0.03 + throttled_ms.get(rank, 0) / 1e3) * SECOND),
            throttled_ns_per_step=round(throttled_ms.get(rank, 0.0) * 1e6),
        )
        found.append(stepping(rank, times, step_s=0.09, process=facts))
    return found


def told(windows: list[RankWindow]) -> list[Finding]:
    return stragglers(windows, SlowLimits())


@pytest.mark.parametrize("seed", range(10))
def test_a_rank_under_a_quota_is_told_where_everybody_waits_for_a_core(seed: int) -> None:
    (found,) = told(crowded(seed, {2: 12.0}, ratio=1.3))
    assert (found.kind, found.ranks) == ("host-contention", (2,))
    assert "the CPU quota of its cgroup stops it for 12 ms" in found.sentence
    assert not found.certain and not found.may_act


def test_who_is_told_by_the_kernels_count_is_not_said_to_deviate() -> None:
    windows = crowded(0, {2: 12.0}, ratio=1.3)
    assert localise(windows, SlowLimits()) == [], "times alone would name nobody"
    (found,) = told(windows)
    assert "deviations" not in found.evidence[0].says and "score" not in found.inputs
    assert found.evidence[0].says.endswith("and the kernel counts 12 ms a step that its CPU quota took")
    assert found.confidence >= LIKELY


@pytest.mark.parametrize("seed", range(10))
def test_times_alone_name_nobody_there(seed: int) -> None:
    assert told(crowded(seed, {})) == []


@pytest.mark.parametrize("seed", range(10))
def test_a_quota_of_all_is_nobodys(seed: int) -> None:
    assert told(crowded(seed, dict.fromkeys(range(4), 25.0))) == []


@pytest.mark.parametrize("seed", range(10))
def test_a_quota_that_takes_no_time_is_not_told(seed: int) -> None:
    assert told(crowded(seed, {2: 1.0}, ratio=1.0)) == []
