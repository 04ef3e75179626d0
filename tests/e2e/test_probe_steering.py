"""Changes in real workers: the same step on all ranks, told by the workers' own logs of what they used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from steered import Forks, Job, Store

from torchloom.model.transaction.operation import How

Start = Callable[..., Job]


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    made = Forks()
    yield made
    made.close()


@pytest.fixture
def start(forks: Forks, tmp_path: Path) -> Iterator[Start]:
    jobs: list[Job] = []
    stores: list[Store] = []

    def begin(case: str, **more: Any) -> Job:
        store = more.pop("store", None)
        if store is None:
            store = Store()
            stores.append(store)
        jobs.append(Job(forks, tmp_path, case, port=store.port, **more))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.kill()
    for store in stores:
        store.close()


def used(job: Job, rank: int, place: str) -> dict[int, Any]:
    return {step: line["used"].get(place) for step, line in job.values(rank).items()}


def lands(job: Job, place: str, at_step: int, value: object, ranks: int = 2) -> None:
    """The first step that uses the value is at_step, on every rank."""
    for rank in range(ranks):
        seen = used(job, rank, place)
        assert seen[at_step] == value, f"rank {rank}: {seen[at_step]} at step {at_step}"
        assert seen[at_step - 1] != value, f"rank {rank} used it before step {at_step}"


# -- an unmodified script --------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["plain", "ddp", "apart"])
def test_a_learning_rate_lands_on_one_step(start: Start, case: str) -> None:
    job = start(case)
    job.reach(3)
    told = job.change({"lr": 0.5})
    assert told.how is How.APPLIED, told
    assert told.reason == f"applied at step {told.at_step} on all ranks"
    job.more(3)
    lands(job, "optimizer0.lr@0", told.at_step, 0.5)
    before = told.changed[0][0]
    assert before == ("optimizer0.lr@0", 0.01, 0.5)
    for rank in range(2):
        assert all(line["own"]["optimizer0.lr@0"] == 0.01 for line in job.values(rank).values())
    assert job.settings()["held"]["optimizer0.lr@0"] == {"value": 0.5, "mode": "hold", "own": 0.01}
