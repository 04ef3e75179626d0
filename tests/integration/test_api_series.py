"""A job's numbers over time through the API, from real telemetry, and after a restart of the service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from api_server import ApiServer, api_server
from steered_ranks import Ranks


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as running:
        yield running


def ask(server: ApiServer, path: str) -> Any:
    status, _, body = server.request("GET", path)
    assert status == 200, body
    return body


def points(server: ApiServer, job: str, name: str) -> list[float]:
    found = ask(server, f"/jobs/{job}/series?name={name}")["series"]
    return [value for one in found for value in one["mean"] if value is not None]


def test_steps_are_recorded_and_continued_after_a_restart(server: ApiServer) -> None:
    job = server.submit(world_size=2)
    server.steer(job, Ranks(2))
    server.wait(lambda: len(points_now(server, job)) >= 3)
    before = points(server, job, "step")
    assert before == sorted(before)
    events = server.weaver.fleet.seq
    server.restart()
    server.wait(lambda: len(points_now(server, job)) > len(before))
    after = points(server, job, "step")
    assert after[: len(before) - 1] == before[:-1], "what was recorded before is still there"
    assert "step" in ask(server, f"/jobs/{job}/series")["names"]
    assert server.weaver.fleet.seq - events < 20, "nothing of it is in the event stream"


def points_now(server: ApiServer, job: str) -> list[int]:
    kept = server.weaver._histories._jobs.get(job)
    track = kept.history.tracks.get("step") if kept else None
    return [n for n in track.recent.count if n] if track else []


def test_all_ranks_of_now_come_in_columns(server: ApiServer) -> None:
    job = server.submit(world_size=3)
    server.steer(job, Ranks(3))
    now = ask(server, f"/jobs/{job}/ranks")
    assert now["rank"] == [0, 1, 2] and now["nodes"] == ["n1"] and all(now["alive"])
    assert {len(now[column]) for column in ("step", "phase", "own_s", "wait_s", "lost_share", "node")} == {3}


def test_a_job_without_a_past_has_empty_series(server: ApiServer) -> None:
    job = server.submit(world_size=1)
    assert ask(server, f"/jobs/{job}/series")["series"] == []
    found = ask(server, f"/jobs/{job}/series/ranks?what=phase&columns=10&rows=1")
    assert found["ranks"] == 0 and not any(found["rows"])
    assert server.request("GET", "/jobs/nothing/series")[0] == 404
    assert server.request("GET", f"/jobs/{job}/series/ranks?what=evil")[0] == 422
