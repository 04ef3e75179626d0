"""torchft with replicas on several nodes: the lighthouse is on one of them, and any part may be lost."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest
from nodes import PATIENCE_S, Nodes, several
from spread_replicas import lighthouses, plain, spread
from stack import wait_until

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Nodes]:
    with several("b", "c", "d") as nodes:
        nodes.near.env["PYTHONPATH"] = ""
        yield nodes


def test_replicas_on_three_nodes_survive_the_loss_of_a_replica_an_agent_and_any_lighthouse(
    fleet: Nodes,
) -> None:
    job = spread(fleet, "ft-three", 3, least=1)
    places = job.places()
    assert len(set(places)) == 3, "each on a node of its own"
    pids = job.pids()
    for index in (1, 0):  # of a node that relays, and of the lighthouse's own
        os.kill(job.pid(index), signal.SIGKILL)
        job.wait_steps(2, 3, (0, 1, 2))
        assert job.pid(index) != pids[index] and job.pid(2) == pids[2]
    pids = job.pids()
    for node in places:
        (lighthouse,) = lighthouses(fleet, node)
        os.kill(lighthouse, signal.SIGKILL)
        job.wait_steps(2, 3, (0, 1, 2))
    relaying = next(node for node in places[1:] if node != "a")
    fleet.agents[relaying].kill()
    fleet.agents[relaying].wait()
    job.wait_steps(2, 3, (0, 1, 2))
    fleet.begin(relaying)
    fleet.wait_ready(relaying)
    said = json.loads(fleet.near.loom("set", job.name, "lr=0.005", "--json").stdout)
    assert said["state"] == "applied", said
    job.wait_steps(3, 3, (0, 1, 2))
    assert job.pids() == pids, "nobody left the step loop"
    last = job.end_together()
    assert job.one_history() >= set(range(1, last)), "also with the new rate, from the same step on"
    assert len(job.weights()) == 1
    wait_until(lambda: not any(lighthouses(fleet, node) for node in places), "nothing of it is left")


def test_the_node_of_the_lighthouse_is_lost_and_the_survivor_never_leaves_its_step_loop(
    fleet: Nodes,
) -> None:
    """Only steps of both replicas are committed here, so the result is that of an undisturbed training."""
    fleet.near.loom("node", "drain", "a")  # it has the control service, which is not to be lost here
    job = spread(fleet, "ft-lost", 2, least=2)
    places = job.places()
    assert set(places) <= {"b", "c", "d"} and len(set(places)) == 2
    home = places[0]
    stays = job.pid(1)
    fleet.lose(home)
    fleet.confirm_gone(home)
    job.wait_steps(3, 2, (0, 1))
    moved = job.places()
    assert moved[1] == places[1] and moved[0] not in places, "replaced on another node"
    assert job.pid(1) == stays, "the survivor kept its process"
    fleet.begin(home)
    fleet.wait_ready(home)
    wait_until(lambda: not lighthouses(fleet, home), "what it had of the lighthouse is ended", PATIENCE_S)
    last = job.end_together()
    steps = [step for step, _ in job.steps(1)]
    assert steps == list(range(1, last + 1)), "it repeated no step and left out none"
    job.one_history()
    assert job.weights() == plain(last, 2), "as in one process, without torchft"
