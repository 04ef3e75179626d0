"""When an agent has spawners fork ahead of need: once for every generation, and never during a recovery."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from torchloom.agent.host import Host
from torchloom.agent.processes.reserve_processes import AFTER_S, UNUSED_S, ReserveProcesses
from torchloom.model.node import RendezvousRef
from torchloom.model.worker import WorkerRef


class Scene:
    """A host with what the question needs of it, and what its spawners were asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, str | None]] = []
        self.workers: dict[WorkerRef, Any] = {}
        self.next: dict[str, str] = {}
        self.stores: dict[RendezvousRef, Any] = {}

        async def reserve(key: str, workers: int, host: str | None) -> None:
            self.asked.append((key, workers, host))

        host = SimpleNamespace(
            workers=self.workers,
            stores=self.stores,
            learned=SimpleNamespace(next=self.next),
            spawners=SimpleNamespace(reserve=reserve, connected=bool),
        )
        self.reserves = ReserveProcesses(cast(Host, host))
        self.now_s = 100.0

    def generation(self, job: str, number: int, workers: int, stepped: bool = True) -> None:
        for ref in [ref for ref in self.workers if ref.job == job]:
            del self.workers[ref]
        for rank in range(workers):
            ref = WorkerRef(job, rank, number, rank)
            self.workers[ref] = SimpleNamespace(
                ref=ref, ending=False, first_step_told=stepped, spawner="plain"
            )
        store = RendezvousRef(job, number)
        self.stores[store] = SimpleNamespace(ref=store, address=SimpleNamespace(host="127.0.0.1"))

    def after(self, seconds: float) -> list[tuple[str, int, str | None]]:
        """What is asked for in a look so much later."""
        self.now_s += seconds
        before = len(self.asked)
        asyncio.run(self.reserves.look(self.now_s))
        return self.asked[before:]


def test_once_for_every_generation_when_all_its_ranks_have_been_at_work_for_a_while() -> None:
    scene = Scene()
    scene.generation("job", 1, 2, stepped=False)
    assert scene.after(0) == [] and scene.after(10) == [], "a start is not delayed"
    scene.generation("job", 1, 2)
    assert scene.after(1) == []
    assert scene.after(AFTER_S) == [("plain", 2, "127.0.0.1")]
    assert scene.after(AFTER_S) == [], "it was asked for"
    scene.workers.clear()
    assert scene.after(0.5) == [], "between two generations"
    scene.generation("job", 2, 2, stepped=False)
    assert scene.after(60) == []
    scene.generation("job", 2, 2)
    assert scene.after(1) == [] and scene.after(AFTER_S) == [("plain", 2, "127.0.0.1")]


def test_of_the_spawner_that_the_next_start_will_use() -> None:
    scene = Scene()
    scene.generation("job", 1, 4)
    scene.after(0)
    assert scene.after(AFTER_S) == [("plain", 4, "127.0.0.1")]
    scene.next["job"] = "learned"
    assert scene.after(1) == [("learned", 4, "127.0.0.1")]
    assert scene.after(UNUSED_S + 1) == [("plain", 0, None)], "nobody would use those"


def test_jobs_that_share_a_spawner_share_the_reserves_of_the_largest() -> None:
    scene = Scene()
    scene.generation("small", 1, 2)
    scene.generation("large", 1, 8)
    scene.after(0)
    assert scene.after(AFTER_S) == [("plain", 8, "127.0.0.1")]
    scene.workers.clear()
    assert scene.after(1) == [] and scene.after(UNUSED_S) == [("plain", 0, None)]
