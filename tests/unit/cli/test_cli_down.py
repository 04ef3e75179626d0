"""`loom down --stop-jobs` comes to an end, whatever has become of the jobs' nodes."""

from __future__ import annotations

from typing import Any

import pytest

from torchloom.cli.jobs import stop
from torchloom.cli.service import down
from torchloom.errors import TimedOut


class Api:
    """Two jobs: one on a node that is there, one on a node that is away. They end after some looks."""

    def __init__(self, near_ends_after: int) -> None:
        self.looks_left = near_ends_after

    def jobs(self, active: bool) -> list[dict[str, Any]]:
        self.looks_left -= 1
        return [{"id": "far"}, *([{"id": "near"}] if self.looks_left > 0 else [])]

    def job(self, job: str) -> dict[str, Any]:
        return {"workers": [{"node": {"far": "gone", "near": "here"}[job]}]}

    def nodes(self) -> list[dict[str, Any]]:
        return [{"id": "here", "state": "ready"}, {"id": "gone", "state": "unreachable"}]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(down, "NODES_AWAY_FOR_S", 0.0)
    monkeypatch.setattr(down, "LOOK_EVERY_S", 0.0)


def wait(api: Any, *jobs: str) -> None:
    down.wait_stopped(api, set(jobs))


def test_what_can_end_is_waited_for_and_the_rest_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    api = Api(near_ends_after=5)
    wait(api, "near", "far")
    assert api.looks_left <= 0
    assert capsys.readouterr().err == "loom: cannot stop jobs whose nodes are unreachable: far\n"


def test_jobs_of_others_do_not_matter(capsys: pytest.CaptureFixture[str]) -> None:
    wait(Api(near_ends_after=3), "near")
    assert capsys.readouterr().err == ""


def test_a_job_that_does_not_end_is_an_error_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "STOP_WITHIN_S", 0.0)
    with pytest.raises(TimedOut, match="near"):
        wait(Api(near_ends_after=10**9), "near")
