"""Slowness: who is late and why, beside jobs in which nobody is."""

from __future__ import annotations

import random
import sys

import pytest
from detect_windows import SECOND, own, stepping, window
from msgspec.structs import replace

from torchloom.core.detect.attribute import slower_job, stragglers
from torchloom.core.detect.comparable import by_role
from torchloom.core.detect.cost import per_rank, what_if
from torchloom.core.detect.judge import AllLimits, Memory, judge
from torchloom.core.detect.slow import SlowLimits, Trigger, localise, watch
from torchloom.core.detect.transfers import transfer_times
from torchloom.core.detect.uneven import periodic
from torchloom.core.detect.window import (
    GroupPosition,
    ProcessFacts,
    RankWindow,
    StepTimes,
    waited_ns,
)
from torchloom.model.windows import PairTimes

LIMITS = SlowLimits()


def job(*slow: RankWindow, ranks: int = 8) -> list[RankWindow]:
    named = {w.rank for w in slow}
    calm = [stepping(r, own(r), step_s=0.5) for r in range(ranks) if r not in named]
    return sorted([*calm, *slow], key=lambda w: w.rank)


def facts(**change: float) -> ProcessFacts:
    return ProcessFacts(**{k: round(v * SECOND) for k, v in change.items()})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "late"),
    [
        ("compute-slow", {"device": "GPU-1"}),
        ("compute-slow", {"device": "cpu-a-3", "process": facts(cpu_ns_per_step=0.12)}),
        ("data-slow", {"data_s": 0.11}),
        ("host-contention", {"process": facts(run_delay_ns_per_step=0.11), "device": "GPU-1"}),
        ("compute-slow", {"device": "cpu-a-3"}),
    ],
)
def test_a_late_rank_is_found_with_its_cause(kind: str, late: dict[str, object]) -> None:
    (found,) = stragglers(job(stepping(3, own(3, 1.4), step_s=0.5, **late)), LIMITS)  # type: ignore[arg-type]
    assert (found.kind, found.ranks) == (kind, (3,))
    assert not found.certain and not found.may_act
    assert "1.4" in found.sentence and "of the job's speed" in found.sentence


def test_a_rank_with_more_work_is_not_slow() -> None:
    windows = [stepping(r, own(r), step_s=0.5, work_per_step=100.0) for r in range(7)]
    heavy = stepping(7, own(7, 1.5), step_s=0.5, work_per_step=150.0, device="GPU-7")
    (found,) = stragglers([*windows, heavy], LIMITS)
    assert found.kind == "data-imbalance" and "1.50× the work" in found.sentence


def test_a_second_one_does_not_hide_behind_the_first() -> None:
    windows = job(stepping(1, own(1, 2.5), step_s=0.8), stepping(5, own(5, 1.3), step_s=0.8))
    assert {late.rank for late in localise(windows, LIMITS)} == {1, 5}


def test_the_slower_one_of_two_is_named() -> None:
    windows = [stepping(0, own(0), step_s=0.5), stepping(1, own(1, 1.4), step_s=0.5)]
    assert [late.rank for late in localise(windows, LIMITS)] == [1]


@pytest.mark.parametrize("seed", range(20))
def test_noise_names_nobody(seed: int) -> None:
    for noise in (0.005, 0.05, 0.2):
        windows = [stepping(r, own(100 * seed + r, noise=noise), step_s=0.5) for r in range(16)]
        assert localise(windows, LIMITS) == []


def test_one_long_step_is_no_straggler() -> None:
    times = own(3)
    times[7] = 30.0
    assert stragglers(job(stepping(3, times, step_s=30)), LIMITS) == []


def test_different_ranks_late_in_every_step_are_uneven_batches() -> None:
    windows = [stepping(r, own(r, noise=0.35), step_s=0.9) for r in range(16)]
    (found,) = stragglers(windows, LIMITS)
    assert (found.kind, found.ranks) == ("data-imbalance", ())


def test_too_many_processes_for_the_cores_are_no_uneven_batches() -> None:
    waits = facts(run_delay_ns_per_step=0.1)
    windows = [stepping(r, own(r, noise=0.35), step_s=0.9, process=waits) for r in range(16)]
    assert stragglers(windows, LIMITS) == []


def test_roles_are_not_compared_with_each_other() -> None:
    first = [stepping(r, own(r), step_s=0.9) for r in range(4)]
    other = [stepping(r, own(r, 2.0), step_s=0.9) for r in range(4, 8)]
    last = [RankWindow(**{**{f: getattr(w, f) for f in w.__struct_fields__}, "role": "head"}) for w in other]
    assert set(by_role([*first, *last])) == {"replica", "head"}
    assert stragglers([*first, *last], LIMITS) == []


def feed(times: list[float]) -> Trigger:
    trigger = Trigger()
    for n, step_s in enumerate(times, 1):
        trigger = watch(trigger, n, step_s, LIMITS)
    return trigger


def test_a_lasting_slowdown_rings_and_a_long_step_does_not() -> None:
    calm = own(1, steps=100)
    assert feed([*calm, *own(2, 1.15, steps=20)]).alarmed
    assert not feed([*calm, 20.0, *own(2, steps=5)]).alarmed
    assert not feed(own(3, steps=400, noise=0.2)).alarmed


def test_every_50th_step_with_a_checkpoint_does_not_ring() -> None:
    times = [5.0 if n % 50 == 0 else t for n, t in enumerate(own(4, steps=500), 1)]
    assert not any(feed(times[:n]).alarmed for n in range(300, 500, 7))


def test_slower_transfers_are_told_from_a_slower_everybody() -> None:
    trigger = feed([*own(1, steps=100), *own(2, 1.5, steps=20)])
    windows = [window(r, groups=(GroupPosition("dp", 4, r, 9, 9, (200 + r) * 10**6),)) for r in range(4)]
    assert transfer_times(windows) == {"dp": 200e6}
    (slow,) = slower_job(windows, trigger, {"dp": 50e6})
    (alike,) = slower_job(windows, trigger, {"dp": 195e6})
    assert slow.kind == "communication-slow" and slow.ask == (0, 1, 2, 3)
    assert alike.kind == "global-slowdown"
    assert slower_job(windows, feed(own(1, steps=100)), {"dp": 50e6}) == []


def test_a_slowdown_of_all_that_wait_for_a_core_says_so() -> None:
    waits = ProcessFacts(run_delay_ns_per_step=round(0.2 * SECOND))
    windows = [stepping(rank, own(rank), step_s=0.5, process=waits) for rank in range(2)]
    trigger = feed(own(1, steps=100) + own(2, 1.5, steps=60))
    (busy,) = slower_job(windows, trigger, {}, 0.1)
    assert (
        busy.kind == "global-slowdown" and "they want a CPU and have none for 0.2 s a step" in busy.sentence
    )
    assert "other work on node a takes it" in busy.sentence
    (usual,) = slower_job(windows, trigger, {}, 0.6)
    assert "no rank, data wait or transfer explains it" in usual.sentence, "it was as busy before"


def test_what_every_rank_costs_is_what_if_of_each() -> None:
    windows = job(stepping(2, own(2, 1.8, 32), step_s=0.8), ranks=4)
    found = per_rank(windows)
    assert [one.rank for one in found] == [0, 1, 2, 3]
    for one in found:
        assert one.cost == what_if(windows, [one.rank])
        assert one.cost.without_steps_per_s == pytest.approx(one.cost.steps_per_s / (1 - one.cost.share))
        assert one.slowest_s is not None and (one.slowest_s < one.own_s) == (one.cost.share > 0)
    late = found[2]
    assert late.cost.share > 0.2 and all(one.cost.share == 0 for one in found if one.rank != 2)
    assert late.peers_s is not None and late.own_s > 1.5 * late.peers_s and late.steps == 16
    (alone,) = per_rank(windows[:1])
    assert alone.peers_s is None and alone.cost.share == 0


def test_overlapping_collectives_are_one_wait() -> None:
    from detect_windows import reduce

    first = reduce(1, 10, finished_ns=995 * SECOND, waited=False)
    second = reduce(2, 9, finished_ns=996 * SECOND, waited=False)
    third = reduce(3, 3, finished_ns=999 * SECOND)
    assert waited_ns([first, second, third]) == (5 + 2) * SECOND + 0
    sent = reduce(4, 20, op="send", waited=False, finished_ns=999 * SECOND)
    assert waited_ns([sent]) == 0


def test_the_cost_is_what_the_job_would_gain() -> None:
    windows = [stepping(r, [0.2] * 8, step_s=0.4) for r in range(3)]
    windows.append(stepping(3, [0.4] * 8, step_s=0.4))
    cost = what_if(windows, (3,))
    assert cost.steps_per_s == pytest.approx(2.5) and cost.lost_steps_per_s == pytest.approx(2.5)
    assert cost.share == pytest.approx(0.5)
    assert what_if(windows, (0,)).share == 0


def test_on_a_busy_host_who_computes_more_also_waits_more_for_a_cpu() -> None:
    """Its peers wait for a CPU as long as they use one; so does it, and that is no contention of its own."""
    usual = facts(cpu_ns_per_step=0.1, run_delay_ns_per_step=0.1)
    calm = [stepping(r, own(r), step_s=0.8, process=usual) for r in range(3)]
    more = facts(cpu_ns_per_step=0.25, run_delay_ns_per_step=0.25)
    (found,) = stragglers([*calm, stepping(3, own(3, 2.0), step_s=0.8, process=more)], LIMITS)
    assert found.kind == "compute-slow" and found.ranks == (3,)
    held_up = facts(cpu_ns_per_step=0.1, run_delay_ns_per_step=0.4)
    (found,) = stragglers([*calm, stepping(3, own(3, 2.0), step_s=0.8, process=held_up)], LIMITS)
    assert found.kind == "host-contention"


@pytest.mark.parametrize(("ranks", "slow"), [(4, 2), (8, 4), (8, 5), (64, 26), (256, 102)])
def test_a_set_that_is_slow_for_good_is_named_and_not_called_imbalance(ranks: int, slow: int) -> None:
    windows = [stepping(r, own(r, 1.5 if r < slow else 1.0, steps=32), step_s=0.5) for r in range(ranks)]
    found = stragglers(windows, LIMITS)
    assert sorted(r for f in found for r in f.ranks) == list(range(slow)), [f.sentence for f in found]
    assert len(found) == 1, "one finding for a set"
    assert f"({slow} of {ranks}) take" in found[0].sentence
    assert {f.kind for f in found} == {"compute-slow"}


def test_a_late_rank_that_changes_is_imbalance() -> None:
    chance = random.Random(3)
    uneven = [[0.3 * chance.lognormvariate(0, 0.35) for _ in range(32)] for _ in range(8)]
    windows = [stepping(r, times, step_s=0.8) for r, times in enumerate(uneven)]
    assert [(f.kind, f.ranks) for f in stragglers(windows, LIMITS)] == [("data-imbalance", ())]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_is_slow_in_every_tenth_step_is_named(ranks: int) -> None:
    late = [t * (6 if n % 10 == 4 else 1) for n, t in enumerate(own(1, steps=32))]
    windows = [stepping(r, late if r == 1 else own(r, steps=32), step_s=0.5) for r in range(ranks)]
    (found,) = stragglers(windows, LIMITS)
    assert (found.kind, found.ranks) == ("compute-slow", (1,))
    assert "in every 10th step" in found.sentence


def test_a_long_step_now_and_then_is_nobodys_period() -> None:
    for long in ({4}, {4, 20}, {3, 9, 27}):
        late = [t * (6 if n in long else 1) for n, t in enumerate(own(1, steps=32))]
        windows = [stepping(r, late if r == 1 else own(r, steps=32), step_s=0.5) for r in range(4)]
        assert stragglers(windows, LIMITS) == []


@pytest.mark.parametrize("ranks", [2, 4])
def test_twice_as_long_in_every_seventh_step_is_named_though_another_step_is_long_by_chance(
    ranks: int,
) -> None:
    late = [t * (2.1 if n % 7 == 3 or n == 12 else 1) for n, t in enumerate(own(1, steps=32))]
    windows = [stepping(r, late if r == 1 else own(r, steps=32), step_s=0.5) for r in range(ranks)]
    (found,) = stragglers(windows, LIMITS)
    assert (found.kind, found.ranks) == ("compute-slow", (1,))
    assert "in every 7th step" in found.sentence


@pytest.mark.parametrize("every", [5, 7, 10])
@pytest.mark.parametrize("behind", [1, 2])
def test_a_period_is_found_though_ranks_are_looked_at_some_steps_apart(every: int, behind: int) -> None:
    """Windows keep 32 steps of each rank. Of those of a device the newest one or two are not shared: all 32
    were asked for, so periods were missed in most looks, and therefore always."""
    late = [t * (3 if n % every == 2 else 1) for n, t in enumerate(own(1, steps=32))]
    ahead = stepping(0, own(0, steps=32 + behind), step_s=0.5)
    windows = [replace(ahead, steps=ahead.steps[behind:]), stepping(1, late, step_s=0.5)]
    (found,) = stragglers(windows, LIMITS)
    assert (found.kind, found.ranks) == ("compute-slow", (1,))
    assert f"in every {every}th step" in found.sentence


def test_a_frequent_period_is_found_among_other_long_steps() -> None:
    late = [t * (3 if n % 5 == 2 or n == 11 else 1) for n, t in enumerate(own(1, steps=31))]
    windows = [stepping(0, own(0, steps=31), step_s=0.5), stepping(1, late, step_s=0.5)]
    (found,) = stragglers(windows, LIMITS)
    assert found.ranks == (1,) and "in every 5th step" in found.sentence


def test_long_steps_by_chance_have_no_period() -> None:
    """A busy machine: one step in eight of each rank takes twice as long."""
    for seed in range(300):
        chance = random.Random(seed)
        steps = 24 + seed % 9
        times = {
            r: [t * (2 if chance.random() < 0.125 else 1) for t in own(seed + r, steps=steps)]
            for r in range(2)
        }
        windows = [stepping(r, some, step_s=0.7) for r, some in times.items()]
        assert periodic(windows, LIMITS) == [], seed


def test_stages_of_a_pipeline_without_roles_are_told_as_such() -> None:
    pairs = (PairTimes("pp", 0, 10**6, 10**6),)
    windows = [
        replace(stepping(r, own(r, 2.5 if r == 3 else 1.0, steps=32), step_s=0.9), role="", pairs=pairs)
        for r in range(4)
    ]
    (found,) = stragglers(windows, LIMITS)
    assert (found.kind, found.ranks) == ("data-imbalance", (3,)) and "stages are uneven" in found.sentence


def test_a_stage_that_has_changed_is_named_by_its_own_past() -> None:
    """Four stages of different lengths: compared with each other nobody stands out."""
    lengths = (1.0, 1.6, 1.3, 0.8)
    memory, told = Memory(), []
    for look in range(1, 40):
        first = max(1, 8 * look - 31)
        windows = []
        for r, length in enumerate(lengths):
            steps = []
            for step in range(first, 8 * look + 1):
                slow = step > 160
                noise = random.Random(r * 10_000 + step).lognormvariate(0, 0.02)
                own_s = 0.3 * length * (1.8 if slow and r == 2 else 1.0) * noise
                whole_s = 0.3 * (2.4 if slow else 1.6) + 0.05
                steps.append(StepTimes(step, round(whole_s * SECOND), 0, round((whole_s - own_s) * SECOND)))
            windows.append(window(r, steps=tuple(steps), role=f"stage {r}", steps_done=8 * look))
        memory, found = judge(windows, memory, AllLimits())
        told += [f for f in found if f.kind != "global-slowdown"]
    assert told and {f.ranks for f in told} == {(2,)} and told[-1].kind == "compute-slow"
    assert "the time of before" in told[-1].sentence and "others do not" in told[-1].sentence


def test_the_cost_of_many_slow_ranks_grows_with_their_number_and_no_faster() -> None:
    """Counted in calls, not in seconds: twice as many ranks must not cost four times as much."""

    def calls(ranks: int) -> int:
        windows = [stepping(r, own(r, 1.5 if r % 5 < 2 else 1.0, steps=32), step_s=0.5) for r in range(ranks)]
        count = 0

        def trace(_frame: object, event: str, _arg: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(trace)
        try:
            stragglers(windows, LIMITS)
        finally:
            sys.setprofile(None)
        return count

    assert calls(512) < 2.6 * calls(256)
