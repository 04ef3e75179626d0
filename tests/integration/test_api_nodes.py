"""Lost nodes and the size of jobs over HTTP: what is refused, what follows, and what is shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from api_server import ApiServer, FakeAgent, api_server


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """Two nodes that are heard."""
    with api_server(nodes=2, slots=4) as made:
        yield made


async def fall_silent(agent: FakeAgent) -> None:
    assert agent.beating is not None
    agent.beating.cancel()
    agent.beating = None
    agent.bus.partition()


def view(server: ApiServer, job: str) -> dict[str, Any]:
    found: dict[str, Any] = server.request("GET", f"/jobs/{job}")[2]
    return found


def node(server: ApiServer, name: str) -> dict[str, Any]:
    return next(one for one in server.request("GET", "/nodes")[2] if one["id"] == name)


def running(server: ApiServer, job: str, workers: int) -> None:
    def so() -> bool:
        known = server.weaver.fleet.jobs[job]
        return known.state == "running" and len(known.workers) == workers

    server.wait(so)


def test_a_host_is_gone_when_a_person_says_so_and_nobody_hears_it(server: ApiServer) -> None:
    job = server.submit(workers_per_node=2, nodes=2, min_workers=2)
    running(server, job, 4)
    status, _, problem = server.request("POST", "/nodes/n2/gone")
    assert status == 409 and "a host that is reachable is not gone" in problem["detail"]
    assert server.request("POST", "/nodes/nowhere/gone")[0] == 404
    server.call(lambda: fall_silent(server.agents[1]))
    server.wait(lambda: server.weaver.fleet.nodes["n2"].state == "unreachable")
    (incident,) = server.request("GET", f"/incidents?job={job}")[2]
    assert incident["kind"] == "node-lost" and incident["open"] and "reported only" in incident["decision"]
    assert view(server, job)["state"] == "running"
    status, _, told = server.request("POST", "/nodes/n2/gone")
    assert status == 200 and (told["state"], told["workers"]) == ("gone", 0)
    assert server.request("POST", "/nodes/n2/gone")[0] == 200, "said twice is said once"
    running(server, job, 2)
    found = view(server, job)
    assert (found["world_size"], found["wanted_workers"]) == (2, 4) and "4 are wanted" in found["reason"]


def test_a_job_is_scaled_within_what_its_owner_allowed(server: ApiServer) -> None:
    job = server.submit(workers_per_node=1, nodes=1, max_workers=8)
    running(server, job, 1)
    for workers, status in ((0, 422), (9, 409), (1, 202)):
        assert server.request("POST", f"/jobs/{job}/scale", {"workers": workers})[0] == status
    assert view(server, job)["generation"] == 1, "nothing was touched"
    assert server.request("POST", f"/jobs/{job}/scale", {"workers": 3})[2]["workers"] == 3
    running(server, job, 3)
    found = view(server, job)
    assert (found["generation"], found["restarts"], found["incident_list"]) == (2, 0, [])
    fixed = server.submit(workers_per_node=1)
    problem = server.request("POST", f"/jobs/{fixed}/scale", {"workers": 2})[2]
    assert "for 1 workers only" in problem["detail"]


def test_a_drained_node_keeps_what_runs_and_gets_nothing_new_until_it_is_opened(server: ApiServer) -> None:
    job = server.submit(workers_per_node=2, nodes=2)
    running(server, job, 4)
    status, _, told = server.request("POST", "/nodes/n2/drain", {"why": "fan broken"})
    assert status == 200 and told["drained"].endswith(": fan broken") and told["workers"] == 2
    (one,) = told["leaving"]
    assert one["job"] == job and one["stays"] and "may not shrink" in one["note"]
    assert server.request("POST", "/nodes/n2/drain", {"keep": True})[2]["leaving"] == []
    assert server.request("POST", "/nodes/nowhere/drain", {})[0] == 404
    assert view(server, job)["state"] == "running"
    waiting = server.submit(workers_per_node=2, nodes=2)
    assert view(server, waiting)["state"] == "waiting"
    status, _, told = server.request("POST", "/nodes/n2/open")
    assert status == 200 and told["drained"] == ""
    running(server, waiting, 4)


def test_spare_places_are_shown(server: ApiServer) -> None:
    job = server.submit(workers_per_node=3, nodes=1, standby=1)
    running(server, job, 3)
    found = view(server, job)
    (spare,) = found["spares"]
    assert found["standby"] == 1 and spare != found["workers"][0]["node"]
    assert node(server, spare)["spare"] == {job: 3}
