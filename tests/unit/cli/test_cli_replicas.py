"""`--replicas N`: one request for each replica."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from torchloom.cli.jobs import flags
from torchloom.cli.jobs.replicas import ReplicaFollower, replica_requests
from torchloom.cli.jobs.request import job_request
from torchloom.cli.show.screen import Screen
from torchloom.client.schema import JobRequest
from torchloom.errors import UsageError


def requests(tmp_path: Path, *argv: str) -> list[JobRequest]:
    (tmp_path / "train.py").touch()
    options = flags.parser("run").parse_args([*argv, "train.py"])
    return replica_requests(options, job_request(options, {}, str(tmp_path)))


def test_each_replica_is_a_job_of_its_own(tmp_path: Path) -> None:
    made = requests(tmp_path, "--replicas", "2", "--nproc-per-node", "3", "--name", "ft", "-l", "team=a")
    assert [one["name"] for one in made] == ["ft-r0", "ft-r1"]
    assert [one["workers_per_node"] for one in made] == [3, 3]
    assert all(one["labels"] == {"team": "a", "replica-set": "ft"} for one in made)
    assert made[1]["replica"] == {"set": "ft", "index": 1, "size": 2, "min_replicas": 1}


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("--min-replicas", "1"), "--min-replicas is for torchft jobs: use it with --replicas N."),
        (("--replicas", "0"), "--replicas takes a number from 1 to 64, not 0."),
        (("--replicas", "2", "--min-replicas", "3"), "--min-replicas takes a number from 1 to 2, not 3."),
        (("--replicas", "2", "--nnodes", "2"), "A replica of a torchft job runs on one node"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, argv: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        requests(tmp_path, *argv)
    assert sentence in str(refused.value)


def test_our_own_sentences_name_the_replica() -> None:
    """All replicas have a rank 0."""
    said: list[str] = []
    follower = ReplicaFollower.__new__(ReplicaFollower)
    follower._job, follower._screen = (
        "ft-r1",
        cast(Screen, SimpleNamespace(say=lambda t, mark: said.append(t))),
    )
    follower._say("rank 0 on a was killed")
    follower._say("ft-r1 is running: 1 worker on a")
    assert said == ["ft-r1: rank 0 on a was killed", "ft-r1 is running: 1 worker on a"]
