"""Attacks on the memory of a neighbour, on hosts of their own: whatever is lost, all ranks restore one state,
the training ends as one that was left alone, and nothing stays in shared memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cut_nodes import CutNodes, cut_nodes
from nodes import PATIENCE_S
from ringed import Ringed
from runs import Run, compare
from stack import wait_until

from torchloom.agent.neighbour import slot_transfer
from torchloom.chaos.hosts import why_not

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
NODES = ("b", "c", "d", "e", "f", "g")
COPIES_MB_S = 4
"""Slow, so that a copy can be caught in the middle. A slow link would make every step slow, too."""
LARGE = ("--width", "512", "--layers", "8")
"""Some 8 MB for each of three ranks."""
MANY = 300
"""Steps, of which some are made while a test waits for slow copies."""


@pytest.fixture(scope="module")
def fleet() -> Iterator[CutNodes]:
    with cut_nodes(*NODES, LOOM_NEIGHBOUR_MB_S=str(COPIES_MB_S)) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def undisturbed() -> dict[int, Run]:
    """By the number of ranks."""
    return {}


def finish(job: Ringed, undisturbed: dict[int, Run], work: Path) -> None:
    """It ends as if nothing had happened, and its memory is free everywhere."""
    job.run.finish(PATIENCE_S)
    job.wait_freed(*NODES)
    if job.world not in undisturbed:
        plain = undisturbed[job.world] = job.train(work / "plain", work / "plain-store")
        plain.finish(PATIENCE_S)
    compare(undisturbed[job.world], job.run)


@pytest.mark.long
def test_two_of_four_that_are_no_neighbours_are_lost_and_memory_is_enough(
    fleet: CutNodes, undisturbed: dict[int, Run], tmp_path: Path
) -> None:
    fleet.wait_ready(*NODES)
    job = Ringed(fleet, tmp_path, 4, standby=2)
    nodes = job.begin()
    job.wait_copied(nodes)
    reached = job.lose(nodes[1], nodes[3])
    job.run.wait_next(0, 1)
    ((step, where),) = job.resumed()
    assert where == "memory" and 0 < step <= reached
    job.returns(nodes[1], nodes[3])
    finish(job, undisturbed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("world", [3, 4])
def test_a_node_and_its_neighbour_are_lost_and_the_store_is_read(
    fleet: CutNodes, undisturbed: dict[int, Run], tmp_path: Path, world: int
) -> None:
    fleet.wait_ready(*NODES)
    job = Ringed(fleet, tmp_path, world, standby=2, every="5")
    nodes = job.begin()
    job.wait_copied(nodes)
    job.run.creep(lambda: job.run.newest_saved(), "the store has a state")
    reached = job.lose(nodes[1], nodes[2])
    job.run.wait_next(0, 1)
    ((step, where),) = job.resumed()
    assert where == "store" and 0 < step <= reached
    job.returns(nodes[1], nodes[2])
    finish(job, undisturbed, tmp_path)


@pytest.mark.long
def test_a_node_that_returns_with_old_states_is_used_again_and_they_are_not(
    fleet: CutNodes, undisturbed: dict[int, Run], tmp_path: Path
) -> None:
    fleet.wait_ready(*NODES)
    job = Ringed(fleet, tmp_path, 3, standby=1)
    nodes = job.begin()
    job.wait_copied(nodes)
    job.lose(nodes[1], with_memory=False)
    job.run.wait_next(0, 1)
    job.returns(nodes[1])
    now = job.begin()
    newer = job.wait_copied(now, after=job.run.lines(0)[-1][1])
    for name in NODES:
        if name not in (*now, nodes[1]):
            fleet.near.loom("node", "drain", name)
    job.lose(now[1])
    job.run.wait_next(0, 2)
    assert job.begin() == nodes, "where old states of rank 1 are"
    first, second = job.resumed()
    assert first[1] == second[1] == "memory" and second[0] >= newer > first[0]
    job.returns(now[1])
    for name in NODES:
        if name not in (*now, nodes[1]):
            fleet.near.loom("node", "open", name)
    finish(job, undisturbed, tmp_path)


def half_sent(job: Ringed, node: str, rank: int) -> bool:
    """Is a copy of this rank on its way to the node?"""
    return any(not slot_transfer.slots([path]) for path in job.folder(node).glob(f"copy-{rank}.*"))


@pytest.mark.long
def test_an_agent_that_was_killed_while_it_took_a_copy_takes_copies_again_and_gives_the_whole_one(
    fleet: CutNodes, undisturbed: dict[int, Run], tmp_path: Path
) -> None:
    """The sender's node is lost then, in the middle of the next copy."""
    fleet.wait_ready(*NODES)
    job = Ringed(fleet, tmp_path, 3, *LARGE, steps=MANY, standby=1)
    nodes = job.begin()
    whole = job.wait_copied(nodes)
    job.run.creep(lambda: half_sent(job, nodes[2], 1), "a copy is on its way")
    job.kill_agent(nodes[2])
    fleet.begin(nodes[2])
    fleet.wait_ready(nodes[2])
    newer = job.wait_copied(nodes, after=job.run.lines(0)[-1][1])
    job.run.creep(lambda: half_sent(job, nodes[2], 1), "another copy is on its way")
    job.lose(nodes[1])
    job.run.wait_next(0, 1)
    ((step, where),) = job.resumed()
    assert where == "memory" and step >= newer > whole
    job.returns(nodes[1])
    job.end()
    job.wait_freed(*NODES)


@pytest.mark.long
def test_the_agent_of_a_sender_is_replaced_in_the_middle_of_a_copy(fleet: CutNodes, tmp_path: Path) -> None:
    fleet.wait_ready(*NODES)
    job = Ringed(fleet, tmp_path, 3, *LARGE, steps=MANY, standby=1)
    nodes = job.begin()
    job.wait_copied(nodes)
    job.run.creep(lambda: half_sent(job, nodes[2], 1), "a copy is on its way")
    job.kill_agent(nodes[1])
    fleet.begin(nodes[1])
    fleet.wait_ready(nodes[1])
    newer = job.wait_copied(nodes, after=job.run.lines(0)[-1][1])
    job.lose(nodes[1])
    job.run.wait_next(0, 1)
    ((step, where),) = job.resumed()
    assert where == "memory" and step >= newer
    job.returns(nodes[1])
    job.end()
    job.wait_freed(*NODES)


@pytest.mark.long
def test_the_agent_that_brings_a_state_dies_and_its_rank_reads_the_store(
    fleet: CutNodes, undisturbed: dict[int, Run], tmp_path: Path
) -> None:
    fleet.wait_ready(*NODES)
    job = Ringed(fleet, tmp_path, 3, *LARGE, steps=MANY, standby=1, every="100")
    nodes = job.begin()
    job.run.go_on(101)
    wait_until(lambda: job.run.newest_saved() == 100, "the store has a state")
    job.wait_copied(nodes, after=101)
    (spare,) = fleet.status(job.job)["spares"]
    keeper, to = fleet.host(nodes[2]), fleet.host(spare)
    fleet.hosts.limit(keeper, to, 500_000)
    job.lose(nodes[1])
    wish = job.folder(spare) / "wish-1"
    wait_until(lambda: wish.exists() and wish.read_text(), "rank 1 waits for its state")
    job.kill_agent(spare)
    fleet.hosts.limit(keeper, to, 0)
    job.run.wait_next(0, 1)
    left = [path.name for path in job.folder(spare).iterdir()]
    assert not [name for name in left if name.startswith(("arriving", "coming"))], "half of it stays"
    fleet.begin(spare)
    fleet.wait_ready(spare)
    ((step, where),) = job.resumed()
    assert (step, where) == (100, "store")
    log = fleet.near.loom("logs", job.job).stdout
    assert "it could not be brought from another node's memory" in log
    job.returns(nodes[1])
    job.end()
    job.wait_freed(*NODES)


@pytest.mark.long
def test_a_pair_that_cannot_reach_each_other_is_reported_and_copies_follow_when_it_can(
    fleet: CutNodes, tmp_path: Path
) -> None:
    """Both reach the control service. The training pauses meanwhile, because it needs the same cable."""
    fleet.wait_ready(*NODES)
    job = Ringed(fleet, tmp_path, 3, *LARGE, steps=MANY, standby=1)
    nodes = job.begin()
    job.wait_copied(nodes)
    job.run.creep(lambda: half_sent(job, nodes[2], 1), "a copy is on its way")
    fleet.part(nodes[1], nodes[2])
    wait_until(lambda: job.missing_copies("rank 1", f"{nodes[2]} has no copy"), "it is reported", PATIENCE_S)
    fleet.mend(nodes[1])
    newer = job.wait_copied(nodes, after=job.run.lines(0)[-1][1])
    wait_until(lambda: not any(w["copy_trouble"] for w in fleet.status(job.job)["workers"]), "no trouble")
    job.lose(nodes[1])
    job.run.wait_next(0, 1)
    ((step, where),) = job.resumed()
    assert where == "memory" and step >= newer
    job.returns(nodes[1])
    job.end()
    job.wait_freed(*NODES)


@pytest.mark.long
def test_the_memory_of_a_job_that_is_stopped_while_a_node_is_away_is_freed_when_it_returns(
    fleet: CutNodes, tmp_path: Path
) -> None:
    fleet.wait_ready(*NODES)
    job = Ringed(fleet, tmp_path, 3)
    nodes = job.begin()
    job.wait_copied(nodes)
    fleet.cut(nodes[2])
    fleet.wait_silent(nodes[2])
    fleet.near.loom("stop", "--kill", "--no-wait", job.job)
    fleet.near.wait_state(job.job, "stopping")  # unreachable is not dead: its rank there may still train
    fleet.mend(nodes[2])
    fleet.wait_ready(nodes[2])
    fleet.near.wait_state(job.job, "stopped")
    job.wait_freed(*NODES)
    fleet.near.loom("delete", job.job)


@pytest.mark.long
@pytest.mark.parametrize("shm_mb", [50, 24])
def test_without_room_for_copies_or_for_any_state_the_training_goes_on_and_older_states_are_used(
    tmp_path: Path, shm_mb: int
) -> None:
    """With 50 MB the slots of a rank fit and one copy, not two; with 24 MB not even the slots."""
    names = ("b", "c", "d", "e")
    with cut_nodes(*names, shm_mb=shm_mb) as fleet:
        job = Ringed(fleet, tmp_path, 3, *LARGE, steps=MANY, standby=1, every="5")
        nodes = job.begin()
        job.run.creep(lambda: job.run.newest_saved(), "the store has a state")
        if shm_mb == 50:
            job.run.creep(lambda: job.missing_copies("there is no room for 9 MiB"), "a copy is refused")
        else:
            assert "MiB may be used" in fleet.near.loom("logs", job.job).stdout, "the tier is off"
        for node in nodes:
            usage = shutil.disk_usage(job.folder(node).parents[1])
            assert usage.free > 0, "nothing of the training runs out of memory"
        reached = job.lose(nodes[1])
        job.run.wait_next(0, 1)
        ((step, where),) = job.resumed()
        assert 0 < step <= reached and (where == "store" or shm_mb == 50)
        job.returns(nodes[1])
        job.end()
        job.wait_freed(*names)
