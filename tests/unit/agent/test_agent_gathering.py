"""What an agent brings to its host before ranks start there: real sockets and real slot files."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from memory_sides import JOB, KEY, Side

from torchloom.agent.neighbour.door import MemoryDoor
from torchloom.agent.neighbour.preparing import Fetches, prepare_memory
from torchloom.checkpoint.memory import tier
from torchloom.checkpoint.memory.header import HEADER, read_header
from torchloom.model.effects import Launch, StartWorkers
from torchloom.model.job import Program
from torchloom.model.messages import MEMORY_SECRET
from torchloom.model.neighbours import NOBODY, MemoryPeer, MemoryPlan, RankMemory
from torchloom.model.node import RendezvousAddress
from torchloom.model.worker import WorkerRef

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def peer(door: MemoryDoor) -> MemoryPeer:
    """The other host, whose agent answers."""
    return MemoryPeer("there", "127.0.0.1", door.port)


def prepare(side: Side, *ranks: RankMemory, size: int, world: int = 0) -> None:
    """What the agent of a host does before rank 0 of so many starts there."""
    effect = StartWorkers(
        id="e",
        cause=1,
        reason="again",
        node="here",
        job=JOB,
        generation=2,
        program=Program("script", "train.py"),
        cwd="/",
        interpreter="",
        spawn="cold",
        preload=(),
        launches=(Launch(WorkerRef(JOB, 0, 2, 1), 0),),
        world_size=size,
        local_world_size=1,
        group_rank=0,
        group_world_size=1,
        replicas=1,
        restart_count=0,
        max_restarts=0,
        store=RendezvousAddress("127.0.0.1", 1),
        memory=MemoryPlan(NOBODY, ranks, world),
    )
    ref = effect.launches[0].ref
    host = SimpleNamespace(home=side.home, node="here", withdrawn=set(), door=None, fetches=Fetches())
    host.starting, host.running = {ref: None}, list

    async def bring() -> None:
        await prepare_memory(cast(Any, host), effect, {MEMORY_SECRET: KEY})
        await host.fetches.wait()

    asyncio.run(bring())


def gathered(side: Side) -> dict[str, bytes]:
    """What is gathered on a host: the bytes by whose they are."""
    return {
        path.name.removeprefix("gathered-"): path.read_bytes()[HEADER:]
        for path in tier.all_gathered(side.folder)
        if read_header(path) is not None
    }


def test_the_newest_state_that_is_to_be_had_of_all_ranks_is_gathered(
    here: Side, there: Side, peer: MemoryPeer
) -> None:
    """Rank 0 ran here; rank 1 on a host that is lost, whose copies are here; rank 2 there."""
    bodies = {
        "0": here.seal(here.own(0, 1), "s.2", 20, world=3),
        "1": here.seal(tier.copy(here.folder, 1, 0), "s.2", 20, world=3),
        "2": there.seal(there.own(2, 2), "s.2", 20, world=3),
        "shared": there.seal(tier.file(there.folder, tier.SHARED, 2), "s.2", 20, world=3),
    }
    here.seal(here.own(0, 0), "s.3", 30, world=3)  # nobody has copied these
    there.seal(there.own(2, 0), "s.3", 30, world=3)
    for path in (here.own(0, 2), tier.copy(here.folder, 1, 1), there.own(2, 1)):
        (here if path.is_relative_to(here.folder) else there).seal(path, "s.1", 10, world=3)
    where = [RankMemory(0, "here"), RankMemory(1, "lost"), RankMemory(2, "there", (peer,))]
    prepare(here, *where, size=2, world=3)
    assert gathered(here) == bodies
    assert not list(here.folder.glob("copy-*")), "of no use to another number of ranks"
    prepare(here, *where, size=2, world=3)
    assert gathered(here) == bodies, "another start finds it"


def test_what_is_gathered_on_one_host_is_given_to_another(here: Side, there: Side, peer: MemoryPeer) -> None:
    """Both gather, one after the other; files have other names by then."""
    bodies = {str(rank): there.seal(there.own(rank, 0), "s.2", 20) for rank in (0, 1)}
    prepare(there, RankMemory(0, "here"), RankMemory(1, "here"), size=3, world=2)
    there.plan(2)
    prepare(here, RankMemory(0, "there", (peer,)), RankMemory(1, "there", (peer,)), size=3, world=2)
    assert gathered(there) == gathered(here) == bodies


def test_nothing_is_gathered_if_a_rank_is_missing_and_what_was_gathered_before_stays(
    here: Side, there: Side, peer: MemoryPeer
) -> None:
    here.seal(here.own(0, 0), "s.1")
    there.seal(there.own(1, 0), "s.2")
    before = here.seal(tier.gathered(here.folder, 0), "r.1", 3, world=4)
    prepare(here, RankMemory(0, "here"), RankMemory(1, "there", (peer,)), size=3, world=2)
    assert gathered(here) == {"0": before}
    assert read_header(here.own(0, 0)) is not None, "other hosts may ask for it"


def test_a_host_that_does_not_answer_leaves_the_state_incomplete_and_the_start_unharmed(here: Side) -> None:
    here.seal(here.own(0, 0), "s.1")
    silent = MemoryPeer("gone", "127.0.0.1", 1)
    prepare(here, RankMemory(0, "here"), RankMemory(1, "gone", (silent,)), size=1, world=2)
    assert gathered(here) == {}


def test_a_rank_that_starts_where_its_copies_are_has_them_as_its_own(here: Side) -> None:
    """The state that the others have is in slot 2 here, so the copy goes there, too."""
    here.seal(here.own(1, 2), "s.2", 20)
    bodies = {n: here.seal(tier.copy(here.folder, 0, n - 1), f"s.{n}", 10 * n) for n in (1, 2)}
    here.seal(here.own(0, 0), "q.9", 1)  # left from a time when rank 0 ran here
    prepare(here, RankMemory(0, "lost"), size=2)
    found = {path.name: path.read_bytes()[HEADER:] for path in here.folder.glob("own-0.*")}
    assert found["own-0.2"] == bodies[2] and bodies[1] in found.values()
    assert not list(here.folder.glob("copy-*"))
