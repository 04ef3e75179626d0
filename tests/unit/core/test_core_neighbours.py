"""Which node keeps copies of another node's states in memory."""

from __future__ import annotations

import pytest
from core_story import spec

from torchloom.core.placement.neighbours import GATHERED_RANKS, choose_neighbours, memory_plan, ring
from torchloom.model.fleet import Fleet, Job, JobState, Node, NodeState, Restore, Worker
from torchloom.model.neighbours import NOBODY, MemoryPlan
from torchloom.model.node import Inventory
from torchloom.model.worker import WorkerRef


def test_a_job_of_one_node_has_no_neighbour() -> None:
    assert ring([]) == {} == ring([("a", "rack-1")])


@pytest.mark.parametrize("count", [2, 3, 7, 100])
def test_every_node_sends_to_one_other_and_keeps_for_one_other(count: int) -> None:
    chosen = ring([(f"n{i}", f"host-{i}") for i in range(count)])
    assert set(chosen) == set(chosen.values()) == {f"n{i}" for i in range(count)}
    assert all(node != neighbour for node, neighbour in chosen.items())


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (2, 1, 1), (3, 2, 1), (4, 4, 4), (5, 3, 2)])
def test_no_copy_is_in_the_failure_domain_of_its_original_if_none_has_more_than_half(
    sizes: tuple[int, ...],
) -> None:
    domain = {f"{rack}-{i}": f"rack-{rack}" for rack, size in enumerate(sizes) for i in range(size)}
    nodes = sorted(domain.items(), key=lambda one: one[0][::-1])  # racks mixed, as ranks may be placed
    chosen = ring(nodes)
    assert set(chosen.values()) == set(domain)
    assert all(domain[node] != domain[neighbour] for node, neighbour in chosen.items())


def test_agents_on_one_host_are_neighbours_rather_than_alone() -> None:
    assert ring([("a", "h"), ("b", "h"), ("c", "h")]) == {"a": "b", "b": "c", "c": "a"}


class Placed:
    """A job whose ranks run on these nodes, and how the next generation finds their states."""

    def __init__(self, *places: str) -> None:
        self.fleet = Fleet()
        for node in "abcd":
            inventory = Inventory(
                hostname=node, address=node, boot_id="1", max_workers=9, memory_port=ord(node)
            )
            self.fleet.nodes[node] = Node(
                id=node, session="s", state=NodeState.READY, inventory=inventory, joined_at_ns=0
            )
        self.job = Job(id="j", spec=spec(), by="ann", state=JobState.RUNNING, reason="", submitted_at_ns=0)
        self.start(*places)

    def start(self, *places: str) -> None:
        workers = [
            Worker(ref=WorkerRef("j", rank, 1, 1), node=node, local_rank=0, replica=0)
            for rank, node in enumerate(places)
        ]
        choose_neighbours(self.fleet, self.job, workers)
        self.job.workers = workers

    def lose(self, node: str) -> None:
        self.fleet.nodes[node].state = NodeState.GONE

    def plan(self, node: str) -> MemoryPlan | None:
        mine = [worker for worker in self.job.workers if worker.node == node]
        return memory_plan(self.fleet, self.job, node, mine)

    def peers(self, node: str) -> dict[int, str]:
        plan = self.plan(node)
        assert plan is not None
        return {one.rank: "".join(peer.node for peer in one.peers) for one in plan.ranks}


def test_a_job_that_stays_on_one_node_copies_and_fetches_nothing() -> None:
    placed = Placed("a", "a")
    placed.start("a", "a")
    assert placed.plan("a") is None


def test_the_states_of_a_lost_node_are_asked_of_its_neighbour() -> None:
    placed = Placed("a", "b")
    placed.lose("b")
    placed.start("a", "c")
    assert placed.peers("c") == {1: "a"}
    assert placed.peers("a") == {0: ""}, "its own are here, and b is gone"
    plan = placed.plan("c")
    assert plan is not None and plan.world == 0 and plan.copy_to.node == "a"


def test_with_fewer_ranks_every_node_gathers_the_states_of_all_of_them() -> None:
    placed = Placed("a", "b", "c")  # a copies to b, b to c, c to a
    placed.lose("b")
    placed.start("a", "c")
    assert placed.peers("a") == {0: "", 1: "c", 2: "c"}
    assert placed.peers("c") == {0: "a", 1: "", 2: "a"}
    assert {plan.world for node in "ac" if (plan := placed.plan(node))} == {3}


def test_who_is_left_alone_still_gathers_and_copies_to_nobody() -> None:
    placed = Placed("a", "b")
    placed.lose("b")
    placed.start("a")
    plan = placed.plan("a")
    assert plan is not None and plan.copy_to == NOBODY and plan.world == 2
    assert placed.peers("a") == {0: "", 1: ""}, "both are here"


def test_a_rank_that_moves_to_where_its_copy_is_has_it_used() -> None:
    placed = Placed("a", "b")
    placed.lose("b")
    placed.start("a", "a")
    plan = placed.plan("a")
    assert plan is not None and plan.copy_to == NOBODY and not plan.world
    assert [(one.rank, one.was_on, one.peers) for one in plan.ranks] == [(0, "a", ()), (1, "b", ())]


def test_states_of_too_many_ranks_are_not_gathered() -> None:
    placed = Placed(*"ab" * (GATHERED_RANKS // 2 + 1))
    placed.start(*"ab" * 3)
    plan = placed.plan("a")
    assert plan is not None and not plan.ranks
    placed = Placed(*"a" * (GATHERED_RANKS + 1))
    placed.start("a")
    assert placed.plan("a") is None


def test_a_state_that_a_person_chose_is_not_taken_from_memory() -> None:
    placed = Placed("a", "b", "c")
    placed.job.restore = Restore(step=5, by="ann", after=1)
    placed.start("a", "b")
    assert placed.peers("a") == {0: ""}
