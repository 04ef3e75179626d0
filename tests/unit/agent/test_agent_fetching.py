"""States that an agent brings while the ranks start: real sockets, real slot files, both ends."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from memory_sides import JOB, KEY, Side

from torchloom.agent.neighbour import slot_transfer
from torchloom.agent.neighbour.channel import NeighbourFailed, call
from torchloom.agent.neighbour.door import MemoryDoor
from torchloom.agent.neighbour.fetching import Fetch
from torchloom.agent.neighbour.plans import KeptPlan
from torchloom.agent.neighbour.preparing import Fetches
from torchloom.checkpoint.memory import arriving, tier
from torchloom.checkpoint.memory.arriving import Bringing, StateArrivals
from torchloom.checkpoint.memory.header import HEADER, read_header
from torchloom.model.neighbours import NOBODY, MemoryPeer, RankMemory

pytestmark = pytest.mark.usefixtures("patient")
RANK = 1
HANG_S = 30.0


class Start:
    """A start of rank 1 on `side`, whose states other hosts may have."""

    def __init__(self, side: Side, *peers: MemoryPeer) -> None:
        self.wanted = threading.Event()
        self.wanted.set()
        self.folder = side.folder
        self.bringing = Bringing(side.folder, RANK)
        effect = cast(Any, SimpleNamespace(job=JOB, world_size=2))
        plan = KeptPlan(2, NOBODY, KEY)
        self.fetch = Fetch(effect, side.folder, plan, self.wanted.is_set)
        args = ([RankMemory(RANK, "lost", peers)], {RANK: self.bringing})
        self._thread = threading.Thread(target=self.fetch.run, args=args)
        self.arrivals = StateArrivals(side.folder, RANK)

    def begin(self) -> None:
        self._thread.start()

    def over(self) -> bool:
        self._thread.join(HANG_S)
        return not self._thread.is_alive()

    def end(self) -> None:
        self.wanted.clear()
        self.fetch.calls.hang_up()
        if self._thread.ident is not None:
            assert self.over()


@pytest.fixture
def peer(door: MemoryDoor) -> MemoryPeer:
    return MemoryPeer("there", "127.0.0.1", door.port)


@pytest.fixture
def start(here: Side, peer: MemoryPeer) -> Iterator[Start]:
    made = Start(here, peer)
    yield made
    made.end()


def until(condition: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.005)


def copies(side: Side, *saves: str) -> dict[str, bytes]:
    """The last is the newest."""
    return {
        save: side.seal(tier.copy(side.folder, RANK, n), save, step=n + 1) for n, save in enumerate(saves)
    }


def own(side: Side) -> dict[str, bytes]:
    found = slot_transfer.own_slots(side.folder, RANK)
    return {slot.header.save: slot.path.read_bytes()[HEADER:] for slot in found}


def left(side: Side) -> list[str]:
    names = sorted(path.name for path in side.folder.iterdir())
    return [name for name in names if name.startswith(("coming", "arriving"))]


def test_the_newest_state_is_brought_while_the_rank_starts_and_the_older_one_stays_away(
    here: Side, there: Side, start: Start
) -> None:
    bodies = copies(there, "s.1", "s.2")
    start.begin()
    promised = start.arrivals.promised()
    assert [one.save for one in promised] == ["s.2", "s.1"]
    assert start.arrivals.take(promised[0])
    assert start.over()
    assert own(here) == {"s.2": bodies["s.2"]} and left(here) == []


def test_the_state_that_the_ranks_agreed_on_is_brought_although_it_is_older(
    here: Side, there: Side, start: Start
) -> None:
    bodies = copies(there, "s.1", "s.2")
    start.begin()
    promised = start.arrivals.promised()
    assert start.arrivals.take(promised[1])
    assert start.over()
    assert own(here) == {"s.1": bodies["s.1"]} and left(here) == []


def test_a_rank_that_restores_from_elsewhere_leaves_nothing_behind(
    here: Side, there: Side, start: Start
) -> None:
    there.seal(tier.file(there.folder, tier.SHARED, 0), "s.1")
    copies(there, "s.1")
    start.begin()
    assert start.arrivals.promised()
    start.arrivals.done()
    assert start.over()
    assert own(here) == {} and left(here) == []


def test_what_ranks_share_comes_with_the_state(here: Side, there: Side, start: Start) -> None:
    shared = there.seal(tier.file(there.folder, tier.SHARED, 2), "s.1")
    copies(there, "s.1")
    start.begin()
    (promise,) = start.arrivals.promised()
    assert start.arrivals.take(promise)
    place = tier.file(here.folder, tier.SHARED, promise.slot)
    assert place.read_bytes()[HEADER:] == shared
    assert read_header(tier.file(here.folder, tier.own(RANK), promise.slot)) is not None


def test_a_node_that_does_not_answer_promises_nothing(here: Side) -> None:
    made = Start(here, MemoryPeer("gone", "127.0.0.1", 1))
    made.begin()
    assert made.arrivals.promised() == []
    assert made.over()


def test_a_node_that_dies_midway_leaves_no_state_and_the_rank_is_told(
    here: Side, there: Side, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies(there, "s.1")
    sent = slot_transfer.Channel.send_file

    def dies(channel: Any, descriptor: int, at: int, most: int) -> int:
        if at > HEADER:
            until(lambda: start.bringing.wished())
            channel.hang_up()
        return sent(channel, descriptor, at, most)

    monkeypatch.setattr(slot_transfer.Channel, "send_file", dies)
    start.begin()
    (promise,) = start.arrivals.promised()
    assert not start.arrivals.take(promise)
    assert own(here) == {}


def test_an_agent_that_dies_holds_up_no_rank(here: Side) -> None:
    """Its lock goes with it."""
    reads, writes = os.pipe()
    agent = os.fork()
    if not agent:
        Bringing(here.folder, RANK)
        os.write(writes, b"!")
        time.sleep(HANG_S)
        os._exit(0)
    assert os.read(reads, 1)
    found: list[object] = []
    rank = threading.Thread(target=lambda: found.append(StateArrivals(here.folder, RANK).promised()))
    rank.start()
    rank.join(0.05)
    assert rank.is_alive(), "it waits as long as the agent lives"
    os.kill(agent, 9)
    os.waitpid(agent, 0)
    rank.join(HANG_S)
    os.close(reads)
    os.close(writes)
    assert found == [[]]


def test_what_an_agent_that_died_was_bringing_is_removed_by_the_rank(here: Side) -> None:
    """Half an image is as large as a whole one, and the job may run for weeks."""
    agent = os.fork()
    if not agent:
        Bringing(here.folder, RANK)
        here.seal(tier.arriving(here.folder, tier.own(RANK), 0), "s.1")
        here.seal(tier.arriving(here.folder, tier.SHARED, 0), "s.1")
        os._exit(0)
    os.waitpid(agent, 0)
    assert left(here) == ["arriving-own-1.0", "arriving-shared.0", "coming-1"]
    StateArrivals(here.folder, RANK).done()
    assert left(here) == []


def test_an_earlier_start_that_still_tries_takes_nothing_from_a_later_one(here: Side, there: Side) -> None:
    former = Bringing(here.folder, RANK)
    latter = Bringing(here.folder, RANK)
    here.seal(tier.arriving(here.folder, tier.own(RANK), 0), "s.1")
    former.close()
    assert left(here) == ["arriving-own-1.0", "coming-1"]
    latter.close()
    assert left(here) == []


def test_nonsense_in_place_of_promises_is_none(here: Side) -> None:
    for text in (
        b"\n",
        b"{}\n",
        b"[[]]\n",
        b'[["step-x","s",2,0]]\n',
        b'[["step-1.g1","s","x",0]]\n',
        b"[1]\n",
    ):
        bringing = Bringing(here.folder, RANK)
        os.pwrite(bringing._descriptor, text, 0)
        assert StateArrivals(here.folder, RANK).promised() == []
        bringing.close()


def test_a_rank_gives_up_on_an_agent_that_is_stopped(here: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arriving, "LIMIT_S", 0.05)
    bringing = Bringing(here.folder, RANK)
    assert StateArrivals(here.folder, RANK).promised() == []
    bringing.close()


def test_a_new_start_ends_what_the_last_one_was_bringing() -> None:
    async def story() -> list[str]:
        said: list[str] = []
        fetches = Fetches()

        async def work() -> None:
            try:
                await asyncio.sleep(HANG_S)
            finally:
                said.append("ended")

        fetches.begin("job", work())
        await asyncio.sleep(0)
        await fetches.end("other")
        assert said == []
        await fetches.end("job")
        return said

    assert asyncio.run(story()) == ["ended"]


def test_a_rank_whose_newest_copy_was_half_sent_is_restored_from_the_older_one(
    here: Side, there: Side, door: MemoryDoor, start: Start
) -> None:
    """The sender was lost in the middle; the copy before it is whole."""
    bodies = copies(there, "s.1")
    lost = here
    lost.seal(lost.own(RANK, 0), "s.2", step=2)
    (slot,) = slot_transfer.own_slots(lost.folder, RANK)
    with call("127.0.0.1", door.port, JOB, bytes.fromhex(KEY)) as channel:
        asked = {"rank": RANK, "generation": 1, "save": "s.2", "keep": "s.1"}
        channel.say(ask="put", size=slot.header.whole, **asked)
        assert not channel.hear()["why"]
        channel.send(slot.head)
        with slot.path.open("rb") as file:
            channel.send_file(file.fileno(), HEADER, 1 << 20)
    slot.path.unlink()
    start.begin()
    (promise,) = start.arrivals.promised()
    assert promise.save == "s.1" and start.arrivals.take(promise)
    assert own(here) == {"s.1": bodies["s.1"]}


@pytest.mark.parametrize("job", ["../memory-job", "a/b", "..", "", "x" * 255, "other"])
def test_a_caller_who_names_another_place_is_not_served(there: Side, door: MemoryDoor, job: str) -> None:
    copies(there, "s.1")
    with (
        pytest.raises(NeighbourFailed),
        call("127.0.0.1", door.port, job, bytes.fromhex(KEY)) as channel,
    ):
        channel.say(ask="list", rank=RANK)
        channel.hear()


@pytest.mark.parametrize(
    "asked",
    [
        {"ask": "put", "rank": -1, "generation": 1, "save": "s", "keep": "", "size": 10},
        {"ask": "put", "rank": "../../x", "generation": 1, "save": "s", "keep": "", "size": 10},
        {"ask": "get", "rank": "../own", "save": "s", "kind": "own"},
        {"ask": "get", "rank": 10**400, "save": "s", "kind": "own"},
        {"ask": "delete"},
        {},
    ],
)
def test_a_request_that_makes_no_sense_touches_nothing(
    there: Side, door: MemoryDoor, asked: dict[str, Any]
) -> None:
    """Of somebody who knows the key of the job."""
    copies(there, "s.1")
    before = {path.name: path.read_bytes() for path in there.folder.iterdir()}
    with call("127.0.0.1", door.port, JOB, bytes.fromhex(KEY)) as channel:
        channel.say(**asked)
        with suppress(NeighbourFailed):
            assert channel.hear() == {"size": 0}, "such a rank has nothing here"
    assert {path.name: path.read_bytes() for path in there.folder.iterdir()} == before
    assert not there.home.boxes.parent.joinpath("x").exists()


def test_a_message_longer_than_allowed_is_refused_before_it_is_read(here: Side, door: MemoryDoor) -> None:
    with call("127.0.0.1", door.port, JOB, bytes.fromhex(KEY)) as channel:
        channel.socket.sendall((1 << 31).to_bytes(4, "little"))
        with pytest.raises(NeighbourFailed):
            channel.hear()
    with pytest.raises(NeighbourFailed, match="too long"):
        channel.send(bytes(4 << 20))
