"""`loom status`: what a worker is at, in words."""

from __future__ import annotations

from typing import Any

import pytest

from torchloom.cli.jobs.status import doing, missing_copies

REDUCE = "all_reduce #44 of group default"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, REDUCE),
        ({"in_collective_s": 23.0, "idle_s": 23.0}, f"{REDUCE} for 23 s"),
        ({"idle_s": 23.0}, f"outside collectives for 23 s, after {REDUCE}"),
        ({"idle_s": 23.0, "phase": "control-wait"}, REDUCE),
        ({"idle_s": 23.0, "phase": "paused"}, "paused until the job is resumed"),
        ({"idle_s": 23.0, "collective": ""}, ""),
        ({"exit": "exited with code 1", "in_collective_s": 9.0}, "exited with code 1"),
        ({"blind": "it is no Python"}, "no telemetry: it is no Python"),
    ],
)
def test_a_rank_that_is_in_no_collective_does_not_look_as_if_it_were(
    facts: dict[str, Any], said: str
) -> None:
    usual = {"blind": "", "exit": "", "collective": REDUCE, "phase": "training"}
    worker: Any = {**usual, "in_collective_s": 0.0, "idle_s": 0.0, **facts}
    assert doing(worker) == said


def test_ranks_without_a_copy_elsewhere_are_named_by_reason() -> None:
    def worker(rank: int, trouble: str) -> Any:
        return {"rank": rank, "copy_trouble": trouble}

    assert missing_copies([worker(0, ""), worker(1, "")]) == []
    lost = [worker(0, "b has no copy: refused"), worker(1, ""), worker(2, "b has no copy: refused")]
    assert missing_copies(lost) == ["ranks 0, 2 would be lost with the node: b has no copy: refused"]
    assert missing_copies([worker(3, "x")]) == ["rank 3 would be lost with the node: x"]
