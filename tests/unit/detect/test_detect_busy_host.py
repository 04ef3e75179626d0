"""On a host with too little CPU for all, who computes more is told from who is held up by others."""

from __future__ import annotations

import pytest
from detect_windows import stepping

from torchloom.core.detect.attribute import stragglers
from torchloom.core.detect.slow import SlowLimits, localise
from torchloom.model.findings import Finding
from torchloom.model.windows import ProcessFacts

STEPS = 16


def kind_of_the_late_one(cpu_ms: float, delay_ms: float) -> str:
    """Peers compute 5 ms of a step of 60 ms in short bursts and wait 8 ms for it."""

    def facts(cpu: float, delay: float) -> ProcessFacts:
        return ProcessFacts(cpu_ns_per_step=round(cpu * 1e6), run_delay_ns_per_step=round(delay * 1e6))

    peers = [stepping(r, [0.06] * STEPS, step_s=0.15, process=facts(5, 8)) for r in (0, 2, 3)]
    late = stepping(1, [0.15] * STEPS, step_s=0.15, process=facts(cpu_ms, delay_ms))
    (found,) = stragglers([*peers, late], SlowLimits())
    assert found.ranks == (1,)
    return found.kind


def test_a_long_computation_waits_longer_for_a_cpu_than_short_ones_and_is_still_the_cause() -> None:
    assert kind_of_the_late_one(cpu_ms=17, delay_ms=86) == "compute-slow"


def test_who_computes_as_much_as_its_peers_is_held_up_by_its_host() -> None:
    assert kind_of_the_late_one(cpu_ms=5.4, delay_ms=97) == "host-contention"


def all_wait_for_a_core(late: ProcessFacts) -> list[Finding]:
    """Two ranks that wait 90 ms for a core in a step of 150 ms, of which one has taken 24 ms longer."""
    usual = ProcessFacts(cpu_ns_per_step=22_000_000, run_delay_ns_per_step=90_000_000)
    one = stepping(0, [0.11] * STEPS, step_s=0.15, process=usual)
    return stragglers([one, stepping(1, [0.134] * STEPS, step_s=0.15, process=late)], SlowLimits())


def test_where_all_wait_for_a_core_chance_is_nobodys_fault() -> None:
    for cpu_ms, delay_ms in ((22, 90), (25.5, 92), (21, 80)):
        facts = ProcessFacts(cpu_ns_per_step=round(cpu_ms * 1e6), run_delay_ns_per_step=round(delay_ms * 1e6))
        assert all_wait_for_a_core(facts) == []


def test_there_too_it_is_told_who_computes_more_or_waits_longer() -> None:
    more = ProcessFacts(cpu_ns_per_step=36_000_000, run_delay_ns_per_step=98_000_000)
    longer = ProcessFacts(cpu_ns_per_step=22_000_000, run_delay_ns_per_step=112_000_000)
    assert [f.kind for f in all_wait_for_a_core(more)] == ["compute-slow"]
    assert [f.kind for f in all_wait_for_a_core(longer)] == ["host-contention"]


def test_who_is_excused_there_is_a_peer_of_those_who_are_not() -> None:
    """Rank 1 takes 26 ms more, by chance; rank 2 50 ms, and computes all of that."""

    def facts(cpu_ms: int) -> ProcessFacts:
        return ProcessFacts(cpu_ns_per_step=cpu_ms * 10**6, run_delay_ns_per_step=90 * 10**6)

    chance = stepping(1, [0.136] * STEPS, step_s=0.16, process=facts(22))
    more = stepping(2, [0.16] * STEPS, step_s=0.16, process=facts(72))
    others = [stepping(rank, [0.11] * STEPS, step_s=0.16, process=facts(22)) for rank in (0, 3, 4)]
    assert {late.rank for late in localise([*others, chance, more], SlowLimits())} == {1, 2}
    (found,) = stragglers([*others, chance, more], SlowLimits())
    assert (found.kind, found.ranks) == ("compute-slow", (2,))
    assert found.inputs["cost"] == pytest.approx(0.024 / 0.16), "without it the job waits for rank 1"
    more = stepping(2, [0.137] * STEPS, step_s=0.16, process=facts(49))
    assert stragglers([*others, chance, more], SlowLimits()) == [], "without it the job is no faster"
