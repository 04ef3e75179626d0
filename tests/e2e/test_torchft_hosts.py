"""torchft with replicas on hosts of their own, and what a person or the kernel does to them.

Both releases: pause, save, change, stop (SIGSTOP), kill and drain, on the lighthouse's host and on others.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cut_nodes import CutNodes, cut_nodes
from spread_replicas import Spread, lighthouses, spread
from stack import wait_until

from torchloom.chaos.hosts import why_not

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.long,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

STABLE = Path(sys.prefix) / "torchft-stable"
ALL = (0, 1, 2)


@pytest.fixture(scope="module")
def fleet() -> Iterator[CutNodes]:
    with cut_nodes("b", "c", "d") as nodes:
        yield nodes


def pause_and_save(job: Spread) -> None:
    loom = job.stack.loom
    at = re.search(r"all ranks wait before step (\d+)", loom("pause", job.name).stdout)
    assert at
    wait_until(lambda: [job.steps(i)[-1][0] for i in ALL] == [int(at[1]) - 1] * 3, "all made the step before")
    loom("resume", job.name)
    job.wait_steps(2, 3, ALL)
    loom("checkpoint", job.name)

    def saved() -> set[int]:
        found = [job.stack.json("checkpoints", one)["checkpoints"] for one in job.jobs]
        return set.intersection(*({one["step"] for one in mine} for mine in found))

    assert len(wait_until(saved, "all replicas saved the same step")) == 1
    said = json.loads(loom("set", job.name, "lr=0.005", "--json").stdout)
    assert said["state"] == "applied", said


def stop(job: Spread, index: int) -> None:
    """Stopped and continued; the others do not wait for it."""
    os.kill(job.pid(index), signal.SIGSTOP)
    others = tuple(one for one in ALL if one != index)
    job.wait_steps(3, 2, others)
    os.kill(job.pid(index), signal.SIGCONT)
    job.wait_steps(2, 3, ALL)


def drain(fleet: CutNodes, job: Spread, index: int) -> None:
    """What is on its node moves, also the lighthouse; replicas of other nodes keep their processes."""
    places, pids = job.places(), job.pids()
    node = places[index]
    job.stack.loom("node", "drain", node)
    wait_until(lambda: node not in job.places(), f"all replicas leave {node}")
    job.wait_steps(3, 3, ALL)
    stay = [one for one in ALL if places[one] != node]
    assert [job.pid(one) for one in stay] == [pids[one] for one in stay]
    wait_until(lambda: not lighthouses(fleet, node), "nothing of it is left there")
    job.stack.loom("node", "open", node)


@pytest.mark.parametrize("release", ["nightly", "stable"])
def test_what_is_done_to_one_replica_or_to_all_holds_across_hosts(fleet: CutNodes, release: str) -> None:
    fleet.near.env["PYTHONPATH"] = str(STABLE) if release == "stable" else ""
    job = spread(fleet, f"ft-{release}", 3, 1, "--env", "SAVE_EVERY=1000000")
    assert sorted(job.places()) == ["b", "c", "d"], "each on a host of its own"
    pids = job.pids()
    pause_and_save(job)
    for index in (1, 0):  # of a host that relays, and of the lighthouse's own
        stop(job, index)
    assert job.pids() == pids, "nobody left the step loop"
    for index in (1, 0):
        os.kill(job.pid(index), signal.SIGKILL)
        job.wait_steps(2, 3, ALL)
        assert job.pid(index) != pids[index] and job.pid(2) == pids[2]
    fleet.cut(job.places()[1])
    job.wait_steps(3, 2, (0, 2))
    fleet.mend(job.places()[1])
    job.wait_steps(2, 3, ALL)
    for index in (1, 0):
        drain(fleet, job, index)
    assert job.pid(2) == pids[2]
    last = job.end_together()
    assert last in job.one_history(), "all end with the same weights"
