"""What a request asks for becomes what the core keeps to."""

from __future__ import annotations

import pytest

from torchloom.api.defaults import Defaults
from torchloom.api.schemas.bodies import JobRequest
from torchloom.api.submission import spec_of
from torchloom.model.fleet import Fleet


@pytest.mark.parametrize(
    ("asked", "served", "restarts", "fruitless"),
    [
        ({}, None, 10, 3),
        ({"max_restarts": 500}, None, 500, 500),
        ({"max_restarts": 1}, None, 1, 1),
        ({"max_restarts": 500, "max_fruitless": 7}, None, 500, 7),
        ({"max_fruitless": 0}, None, 10, 0),
        ({}, 500, 500, 3),
    ],
)
def test_whoever_says_how_many_restarts_there_may_be_gets_as_many(
    asked: dict[str, int], served: int | None, restarts: int, fruitless: int
) -> None:
    """Also for a job that makes no progress, unless the request says otherwise; a default of the service does
    not count as said by anybody."""
    body = JobRequest.model_validate({"program": {"kind": "script", "target": "/t.py"}, "cwd": "/", **asked})
    limits = spec_of(body, {}, Defaults(max_restarts=served), Fleet()).restarts
    assert (limits.max_restarts, limits.max_restarts_per_worker) == (restarts, restarts)
    assert limits.max_fruitless == fruitless
