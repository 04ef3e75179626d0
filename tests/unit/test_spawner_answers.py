"""An agent reads the answers of a spawner that is newer than itself: what it does not know is left out."""

from __future__ import annotations

import json

import pytest

from torchloom.errors import SpawnFailed
from torchloom.spawner.client import ChildExit, SpawnerGone, read_keeper, read_message, read_started

STARTED = {"pid": 77, "start_ticks": 5, "box": "/b", "already": False, "error": None, "notes": ["x"]}
KEEPER = {"pid": 77, "start_ticks": 5, "host": "127.0.0.1", "port": 29500, "already": False}
EXIT = {
    "pid": 77,
    "start_ticks": 5,
    "code": 1,
    "signal": None,
    "at_ns": 9,
    "kind": "worker",
    "box": None,
    "job": "j",
}


def test_what_is_no_record_is_refused_in_order() -> None:
    for wrong in ([], "exit", 7, None):
        with pytest.raises(SpawnerGone):
            read_message(json.dumps({"exit": wrong}).encode())
        with pytest.raises(SpawnFailed):
            read_keeper(wrong)
        with pytest.raises(SpawnFailed):
            read_started([wrong])


def test_fields_that_a_newer_spawner_adds_are_left_out() -> None:
    assert read_started([STARTED | {"cgroup": "/x"}]) == read_started([STARTED])
    assert read_keeper(KEEPER | {"family": "inet6"}) == read_keeper(KEEPER)
    newer, known = (read_message(json.dumps({"exit": one}).encode()) for one in (EXIT | {"usage": {}}, EXIT))
    assert newer == known and isinstance(known, ChildExit)
