"""Jobs whose replicas are unequal by design, or equal in odd ways, are never said to have diverged."""

from __future__ import annotations

import pytest
from stack import Stack

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

LIVES = [
    ("ddp", 3),
    ("local", 2),
    ("warm-local", 2),
    ("warm-local", 3),
    ("fsdp", 2),
    ("zero", 2),
    ("join", 2),
]


def test_no_healthy_job_is_said_to_have_diverged(stack: Stack) -> None:
    for mode, workers in LIVES:
        job = stack.submit("unequal.py", mode, "15", workers=workers)
        stack.wait_state(job, "completed", timeout_s=150)
        told = [one["verdict"] for one in stack.json("incidents", job) if one["kind"] == "divergence"]
        assert not told, (mode, workers, told)
