"""A job trains on in the same processes while every part around it is replaced by another version."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from earlier_version import NEW, Swapped, earlier_python, kill, swapped
from stack import SCRIPTS, wait_until

LONG = pytest.mark.long
"""Combinations that CI does not need each time."""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return earlier_python(tmp_path_factory.mktemp("earlier"))


@pytest.fixture
def fleet(old: Path) -> Iterator[Swapped]:
    with tempfile.TemporaryDirectory(prefix="loom-up-") as root, swapped(Path(root), old) as made:
        yield made


def submit(fleet: Swapped, python: Path) -> str:
    """Two ranks whose interpreter, and so spawner and probe, is of one version."""
    args = ("submit", "--nproc-per-node", "2", str(SCRIPTS / "train.py"), str(fleet.root / "notes"))
    return fleet.loom(*args, python=python).stdout.split()[-1]


def end(fleet: Swapped, job: str, agent: str) -> None:
    """Stop the job: the parts that are left agree that nothing of it runs any more."""
    with fleet.client() as client:
        client.stop(job, {"kill": True})
    wait_until(lambda: fleet.job(job).get("state") == "stopped", f"{job} is stopped")
    fleet.end(agent)


def test_the_control_service_is_replaced_then_the_agent(fleet: Swapped, old: Path) -> None:
    fleet.start_weaver("weaver-old", old)
    fleet.start_agent("agent-old", old)
    wait_until(lambda: fleet.client().nodes(), "the node has joined")
    job = submit(fleet, old)
    pids = fleet.wait_trains(job, 1)
    assert len(pids) == 2

    plan = json.loads(fleet.loom("upgrade", "--check", "--json").stdout)
    assert plan["ok"] and not plan["problems"], plan
    kinds = [part["kind"] for part in plan["parts"]]
    assert kinds == ["control service", "agent", "workers"], plan

    fleet.start_weaver("weaver-new", NEW)
    fleet.end("weaver-old")
    fleet.wait_leads("weaver-new")
    assert fleet.wait_trains(job, 1) == pids, "a new control service with an old agent"
    assert "hello from rank 0" in fleet.loom("logs", job, "--rank", "0").stdout

    fleet.end("agent-old")
    fleet.start_agent("agent-new", NEW)
    wait_until(lambda: fleet.client().versions()["nodes"][0]["version"], "the new agent has joined")
    assert fleet.wait_trains(job, 1) == pids, "a new agent with workers of the old version"
    found = fleet.client().versions()
    assert found["jobs"] == [{"job": job, "workers": {"": 2}}], "whose version nobody has reported"

    kill(pids[0])
    later = fleet.wait_trains(job, 2)
    assert len(later) == 2 and not set(later) & set(pids), "started by a new agent through the old spawner"
    end(fleet, job, "agent-new")


@LONG
def test_the_agent_is_replaced_first(fleet: Swapped, old: Path) -> None:
    fleet.start_weaver("weaver-old", old)
    fleet.start_agent("agent-old", old)
    wait_until(lambda: fleet.client().nodes(), "the node has joined")
    job = submit(fleet, old)
    pids = fleet.wait_trains(job, 1)
    fleet.end("agent-old")
    fleet.start_agent("agent-new", NEW)
    assert fleet.wait_trains(job, 1) == pids, "a new agent with an old control service"
    kill(pids[1])
    pids = fleet.wait_trains(job, 2)
    fleet.start_weaver("weaver-new", NEW)
    fleet.end("weaver-old")
    fleet.wait_leads("weaver-new")
    assert fleet.wait_trains(job, 2) == pids
    end(fleet, job, "agent-new")


@LONG
def test_back_to_the_earlier_version_with_workers_of_the_new_one(fleet: Swapped, old: Path) -> None:
    fleet.start_weaver("weaver-new", NEW)
    fleet.start_agent("agent-new", NEW)
    wait_until(lambda: fleet.client().nodes(), "the node has joined")
    job = submit(fleet, NEW)
    pids = fleet.wait_trains(job, 1)
    assert fleet.client().versions()["jobs"][0]["workers"].keys() != {""}
    fleet.end("agent-new")
    fleet.start_agent("agent-old", old)
    assert fleet.wait_trains(job, 1) == pids, "an old agent with a new spawner and new workers"
    kill(pids[0])
    pids = fleet.wait_trains(job, 2)
    fleet.start_weaver("weaver-old", old)
    fleet.end("weaver-new")
    fleet.wait_leads("weaver-old")
    assert fleet.wait_trains(job, 2) == pids, "an old control service reads the new one's stream"
    end(fleet, job, "agent-old")
