"""A stage of a pipeline that is slow from the start: reported for what it is, never acted on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from detect_windows import SECOND, own, stepping
from msgspec.structs import replace

from torchloom.chaos.scenario import EXPECTED, Parallelism, ScenarioFault
from torchloom.chaos.simulator import Simulation
from torchloom.core.detect.attribute import against_own_past, changed_ranks, stragglers
from torchloom.core.detect.judge import AllLimits, Memory, judge
from torchloom.core.detect.slow import SlowLimits, Trigger
from torchloom.core.detect.stages import uneven_stages
from torchloom.core.detect.window import GroupPosition, ProcessFacts, RankWindow
from torchloom.model.findings import Finding
from torchloom.model.windows import PairTimes

LIMITS = SlowLimits()


def pipeline(
    lengths: Sequence[float], dp: int = 1, roles: bool = True, **of_slowest: object
) -> list[RankWindow]:
    """One rank per stage and replica: the rank of (d, p) is d · pp + p."""
    pp, slowest = len(lengths), max(range(len(lengths)), key=lambda p: lengths[p])
    found = []
    for rank in range(dp * pp):
        stage = rank % pp
        made = stepping(
            rank, own(rank, lengths[stage], steps=32), step_s=0.4 * max(lengths), device=f"cpu-a-{rank}"
        )
        peer = stage + 1 if stage < pp - 1 else stage - 1
        made = replace(
            made,
            role=f"stage {stage}" if roles else "",
            groups=(GroupPosition(f"pp.{rank // pp}", pp, stage, 0, 0),),
            pairs=(PairTimes(f"pp.{rank // pp}", peer, 10**6, 10**6),),
            **(of_slowest if stage == slowest else {}),
        )
        found.append(made)
    return found


@pytest.mark.parametrize("dp", [1, 2, 4])
@pytest.mark.parametrize("slow", [0, 1, 3])
@pytest.mark.parametrize("roles", [True, False])
def test_a_stage_that_takes_much_longer_than_the_others_is_reported(dp: int, slow: int, roles: bool) -> None:
    lengths = [1.7 if p == slow else 1.0 for p in range(4)]
    (found,) = uneven_stages(pipeline(lengths, dp, roles), LIMITS)
    assert (found.kind, found.ranks) == ("data-imbalance", tuple(d * 4 + slow for d in range(dp)))
    assert not found.certain and not found.may_act and found.traits.blames_nobody
    assert 1.6 < float(found.inputs["ratio"]) < 1.8 and "the other stages" in found.sentence


@pytest.mark.parametrize("lengths", [(1.0, 1.0, 1.0, 1.0), (1.2, 1.0, 1.0, 1.25), (1.5, 1.35, 1.2, 1.0)])
def test_stages_that_differ_a_little_or_by_degrees_are_not(lengths: tuple[float, ...]) -> None:
    assert uneven_stages(pipeline(lengths, 2), LIMITS) == []


def test_half_of_the_ranks_of_a_pipeline_without_roles_are_a_stage_and_not_uneven_batches() -> None:
    windows = pipeline((1.0, 1.7), 8, roles=False)
    shared = [
        replace(w, groups=(*w.groups, GroupPosition(f"dp.{w.rank % 2}", 8, w.rank // 2, 64, 64)))
        for w in windows
    ]
    (found,) = stragglers(shared, LIMITS)
    assert found.ranks == tuple(range(1, 16, 2)) and "other stages" in found.sentence


def test_two_long_stages_are_one_finding() -> None:
    (found,) = uneven_stages(pipeline((1.0, 1.6, 1.0, 1.65), 2), LIMITS)
    assert found.ranks == (1, 3, 5, 7) and "stage 1, stage 3 (ranks 1, 3, 5 and 7" in found.sentence


def test_roles_that_do_not_send_to_each_other_are_not_stages() -> None:
    windows = [replace(w, pairs=()) for w in pipeline((1.0, 1.0, 2.0), 2)]
    assert uneven_stages(windows, LIMITS) == []


def test_what_was_measured_names_the_stage_as_slow() -> None:
    """A stage with more layers does not wait for a core: that is its host's fault."""
    held = ProcessFacts(run_delay_ns_per_step=round(0.2 * SECOND))
    (found,) = uneven_stages(pipeline((1.0, 1.7, 1.0), process=held), LIMITS)
    assert (found.kind, found.ranks) == ("host-contention", (1,)) and "wants a CPU" in found.sentence


def test_a_rank_that_is_slower_than_its_own_past_is_no_uneven_stage() -> None:
    """Without roles: a stage with more work had more from the start."""
    lengths = [1.0] * 3 + [1.6]
    windows = pipeline(lengths, roles=False)
    (found,) = stragglers(windows, LIMITS, dict.fromkeys(range(4), 0.3 * SECOND))
    assert (found.kind, found.ranks) == ("compute-slow", (3,)) and "before" in found.sentence
    long = {r: 0.3 * SECOND * lengths[r] for r in range(4)}
    assert [f.kind for f in stragglers(windows, LIMITS, long)] == ["data-imbalance"]


@pytest.mark.parametrize("dp", [1, 2])
@pytest.mark.parametrize("roles", [True, False])
def test_a_simulated_pipeline_with_a_slow_stage(dp: int, roles: bool) -> None:
    shape = Parallelism(dp=dp, pp=4, gpus=False)
    fault = ScenarioFault("slow-stage", rank=2, step=0, factor=1.6)
    sim, memory, said = Simulation(shape, 5, fault, roles=roles), Memory(), list[Finding]()
    for now in range(1, 40):
        sim.run_until(float(now))
        memory, found = judge(sim.windows(), memory, AllLimits())
        said += found
    assert said and {f.kind for f in said} == EXPECTED["slow-stage"], [f.sentence for f in said[-3:]]
    assert {r for f in said for r in f.ranks} == {d * 4 + 2 for d in range(dp)}
    assert not any(f.may_act or f.certain for f in said)
    assert memory.own_ns.keys() == set(range(shape.world)), "its own time must be learned meanwhile"


def test_both_stages_of_a_pipeline_that_become_slow_are_compared_with_their_own_past() -> None:
    """No rank differs from the others: what each took before shows that both are slower."""
    sim = Simulation(
        Parallelism(dp=1, pp=2, tp=1, gpus=False), 3, ScenarioFault("slow-all", step=60, factor=1.8)
    )
    memory, said = Memory(), ""
    for now in range(1, 90):
        sim.run_until(float(now))
        memory, found = judge(sim.windows(), memory, AllLimits())
        said = next((f.sentence for f in found if f.kind == "global-slowdown"), said)
        assert not any(f.ranks for f in found), [f.sentence for f in found]
    assert "on all ranks alike: each takes 1." in said and "× its own time of before" in said, said


def test_stages_that_became_slow_by_different_factors_are_each_told() -> None:
    slower = Finding(
        kind="global-slowdown", ranks=(), sentence="", confidence=0.7, inputs={"before_s": 0.4, "now_s": 0.8}
    )
    windows = pipeline((1.4, 2.2), roles=False)
    found = against_own_past(slower, windows, {0: 0.3e9, 1: 0.3e9})
    assert "from 1.4" in found.sentence and "(rank 0) to 2.2" in found.sentence
    assert [e.rank for e in found.evidence] == [1, 0] and found.ranks == ()
    assert against_own_past(slower, windows, {0: 0.3e9}) is slower, "the past of rank 1 is not known"


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_of_stages_that_are_all_slower_than_before_the_slowest_is_not_the_one_to_blame(stages: int) -> None:
    windows = pipeline([1.6] * (stages - 1) + [2.2], roles=False)
    usual = dict.fromkeys(range(stages), 0.3 * SECOND)
    assert stragglers(windows, LIMITS, usual) == []
    changed = {**usual, 0: 0.3 * 1.6 * SECOND}
    (found,) = stragglers(windows, LIMITS, changed)
    assert found.ranks == (stages - 1,) and "a step before, and now" in found.sentence


def test_two_slow_stages_of_three_are_named_where_the_third_is_as_before() -> None:
    windows = pipeline((1.0, 1.6, 1.6), roles=True)
    usual = dict.fromkeys(range(3), 0.3 * SECOND)
    trigger = Trigger(alarmed=True, baseline_s=0.4, now_s=0.64, above=40)
    (found,) = changed_ranks(windows, usual, trigger)
    assert found.ranks == (1, 2) and "the others do not" in found.sentence
    assert changed_ranks(pipeline((1.6, 1.6, 1.6), roles=True), usual, trigger) == []
