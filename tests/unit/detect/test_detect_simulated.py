"""Whole simulated jobs through all detectors: every class of fault, and benign jobs without an action."""

from __future__ import annotations

import random
from typing import get_args

import pytest
from simulated_job import live

from torchloom.chaos.scenario import (
    EXPECTED,
    FROM_THE_START,
    NAMES_A_RANK,
    PIPELINES,
    Benign,
    FaultKind,
    Parallelism,
    Pause,
    PauseKind,
    ScenarioFault,
    Stuck,
)
from torchloom.chaos.simulator import Simulation
from torchloom.core.detect.judge import AllLimits, Memory, judge
from torchloom.core.detect.matrix import judge_links

SHAPE = Parallelism(dp=4, pp=1, tp=2, gpus=False)
PIPELINE = Parallelism(dp=2, pp=4, tp=1, gpus=False)


@pytest.mark.parametrize("kind", get_args(FaultKind))
def test_every_fault_is_told_with_its_class_and_rank(kind: FaultKind) -> None:
    step = 0 if kind in FROM_THE_START else 30
    factor = 12.0 if kind in ("slow-link", "slow-sender", "slow-receiver") else 1.6
    rank = 2 if kind == "left-out-send" else 3
    fault = ScenarioFault(kind, rank=rank, step=step, factor=factor, stuck="read", peer=5)
    shape = PIPELINE if kind in PIPELINES else SHAPE
    sim = Simulation(shape, 11, fault)
    found = live(sim, 65.0 if kind == "never-starts" else 26.0)
    right = [f for f in found if f.kind in EXPECTED[kind]]
    assert right, [f.sentence for f in found]
    if kind in NAMES_A_RANK:
        assert rank in sim.struck and right[0].ranks == tuple(sorted(sim.struck))
    assert not any(f.may_act for f in found if f not in right)


@pytest.mark.parametrize("rank", [0, 1, 2, 3, 6])
@pytest.mark.parametrize("stuck", ["stopped", "lock", "read"])
def test_a_pipeline_rank_that_hangs_before_a_send_is_certain_where_its_process_is(
    rank: int, stuck: Stuck
) -> None:
    """Its partners wait in recv: that it has not sent is proven by what its agent counts, nothing more."""
    found = live(
        Simulation(PIPELINE, 7, ScenarioFault("pipeline-hang", rank=rank, step=30, stuck=stuck)), 40.0
    )
    assert {f.ranks for f in found if f.kind == "hang"} == {(rank,)}, [f.sentence for f in found]
    assert any(f.certain and f.may_act for f in found) == (stuck != "read")


@pytest.mark.parametrize("kind", ["slow-link", "slow-sender", "slow-receiver"])
def test_probes_say_which_end_is_slow(kind: FaultKind) -> None:
    sim = Simulation(Parallelism(dp=8), 3, ScenarioFault(kind, rank=2, peer=6, factor=8.0))
    found = judge_links(sim.probe(range(8)))
    assert [(f.kind, f.ranks) for f in found] == [
        (kind.removeprefix("slow-") + "-slow", (2, 6) if kind == "slow-link" else (2,))
    ]


@pytest.mark.parametrize("kind", get_args(PauseKind))
def test_an_unannounced_pause_is_told_and_never_certain(kind: PauseKind) -> None:
    chance = random.Random(kind)
    pauses = (Pause(3, 30, 60.0, kind), Pause(chance.randrange(8), 34, chance.uniform(3, 60), kind))
    found = live(Simulation(SHAPE, 5, None, Benign(pauses=pauses)), 150.0, every_s=2.0)
    assert any(f.kind == "hang" and f.ranks == (3,) for f in found)
    assert not any(f.certain or f.may_act for f in found)
    assert {f.kind for f in found} == {"hang"}


def test_a_pause_at_a_place_known_for_pauses_is_not_told_again() -> None:
    pauses = (Pause(3, 30, 40.0, "eval"), Pause(3, 60, 45.0, "eval"))
    sim = Simulation(SHAPE, 5, None, Benign(pauses=pauses))
    memory, told = Memory(), []
    for now in range(1, 150):
        sim.run_until(now)
        memory, found = judge(sim.windows(), memory, AllLimits())
        for finding in found:
            sim.ask(finding.ask)
            told.append(sim.ranks[0].done)
    assert told and max(told) < 55
    assert memory.pace.pauses_s["evaluate() at eval.py:10"] > 35


@pytest.mark.parametrize(
    "benign",
    [
        Benign(checkpoint_every=25, checkpoint_s=4.0),
        Benign(eval_every=40, eval_s=25.0, announced=True),
        Benign(garbage_every=20, own_lengths=0.03),
        Benign(shared_lengths=0.2),
        Benign(oversubscribed=2.0),
    ],
    ids=["checkpoints", "evals", "garbage", "lengths", "oversubscribed"],
)
def test_a_healthy_job_gives_no_cause_for_an_action_nor_for_blame(benign: Benign) -> None:
    found = live(Simulation(SHAPE, 8, None, benign), 60.0)
    assert not any(f.may_act for f in found)
    assert {f.kind for f in found} <= {"hang"}, [f.sentence for f in found]


def test_a_seed_gives_the_same_windows_again() -> None:
    def windows() -> object:
        sim = Simulation(Parallelism(2, 2, 2), 42, ScenarioFault("slow-compute", 1, 10))
        sim.run_until(8.0)
        return sim.windows()

    assert windows() == windows()
