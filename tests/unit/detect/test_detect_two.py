"""Two ranks with the same fault at once: both are named, or it is said why only one can be."""

from __future__ import annotations

import pytest
from detect_windows import PACE, missing, waiting
from msgspec.structs import replace
from simulated_job import live

from torchloom.chaos.scenario import Parallelism, ScenarioFault
from torchloom.chaos.simulator import Simulation
from torchloom.core.detect.hang import hangs
from torchloom.core.detect.thresholds import StuckLimits
from torchloom.core.detect.window import ProcessFacts

PIPELINE = Parallelism(dp=2, pp=4, tp=1, gpus=False)


ONE_PIPELINE = Parallelism(dp=1, pp=4, tp=1, gpus=False)


@pytest.mark.parametrize(
    ("ranks", "rank", "also"),
    [
        (ONE_PIPELINE, 0, 1),
        (ONE_PIPELINE, 0, 3),
        *((PIPELINE, *pair) for pair in [(0, 3), (2, 5), (3, 4), (6, 1)]),
    ],
)
def test_two_pipeline_ranks_that_are_stopped_are_both_named(ranks: Parallelism, rank: int, also: int) -> None:
    """A signal stops the second wherever it is: mostly in a recv from somebody who waits as well."""
    fault = ScenarioFault("pipeline-hang", rank=rank, step=30, stuck="stopped", also=also)
    sim = Simulation(ranks, 7, fault)
    found = live(sim, 30.0)
    assert sim.struck == {rank, also}
    sure = [f for f in found if f.kind == "hang" and f.certain]
    assert sure and sure[-1].ranks == tuple(sorted((rank, also))), [f.sentence for f in found]
    assert not {rank, also} & set(sure[-1].waiting)


def test_a_stopped_rank_that_waits_is_mentioned_where_the_culprit_may_still_come() -> None:
    held = replace(waiting(2), process=ProcessFacts(state="T"))
    (found,) = hangs([waiting(0), waiting(1), held, missing(3)], PACE, StuckLimits())
    assert found.ranks == (3,) and not found.certain
    assert "rank 2 is stopped (SIGSTOP) as well" in found.sentence


@pytest.mark.parametrize(("rank", "also"), [(1, 6), (4, 3), (2, 5)])
def test_two_that_left_out_a_collective_and_block_each_other_are_both_named(rank: int, also: int) -> None:
    """Each belongs to another group and is a step ahead: the pipeline closes the circle between them."""
    sim = Simulation(PIPELINE, 7, ScenarioFault("skip", rank=rank, step=31, also=also))
    found = [f for f in live(sim, 30.0) if f.kind == "desync"]
    assert sim.struck == {rank, also}
    assert found and {r for f in found for r in f.ranks} == {rank, also}, [f.sentence for f in found]
    assert "left out" in found[0].sentence


def test_two_pairs_that_disagree_are_both_named() -> None:
    """Of two that differ nobody can say who is wrong; so both are named, as in the other group."""
    shape = Parallelism(dp=2, pp=2, tp=2, gpus=False)
    found = live(Simulation(shape, 7, ScenarioFault("desync", rank=0, step=30, also=3)), 25.0)
    assert [f.ranks for f in found if f.kind == "desync"][-1] == (0, 3, 4, 7), [f.sentence for f in found]


@pytest.mark.parametrize("kind", ["crash", "nan", "heavy-rank", "diverge"])
def test_the_simulator_gives_both_ranks_the_fault(kind: str) -> None:
    sim = Simulation(
        Parallelism(dp=8, gpus=False, a_node=4),
        7,
        ScenarioFault(kind, rank=1, step=30, also=6),  # type: ignore[arg-type]
    )
    said = live(sim, 30.0)
    assert {1, 6} <= {r for f in said for r in f.ranks}, [f.sentence for f in said]
