"""Copies of states in memory between two agents: real sockets and real slot files."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from memory_sides import JOB, KEY, Side

from torchloom.agent.neighbour import slot_transfer
from torchloom.agent.neighbour.channel import Channel, NeighbourFailed, call
from torchloom.agent.neighbour.copier import Copier, bandwidth, rest_s
from torchloom.agent.neighbour.door import MemoryDoor
from torchloom.agent.neighbour.plans import KeptPlan
from torchloom.agent.neighbour.slot_transfer import SendingPace, copied_slots, own_slots
from torchloom.checkpoint.memory import header, tier
from torchloom.checkpoint.memory.header import HEADER
from torchloom.home import Home
from torchloom.model.neighbours import MemoryPeer
from torchloom.model.worker import WorkerRef

pytestmark = pytest.mark.usefixtures("patient")


def put(
    channel: Channel,
    side: Side,
    save: str,
    *,
    keep: str = "",
    generation: int = 1,
    midway: Callable[[], None] = lambda: None,
) -> str:
    """Send rank 1's state; why it was not taken."""
    (slot,) = [one for one in own_slots(side.folder, 1) if one.header.save == save]
    channel.say(ask="put", rank=1, generation=generation, save=save, keep=keep, size=slot.header.whole)
    if why := channel.hear()["why"]:
        return str(why)
    midway()
    slot_transfer.send(channel, slot, SendingPace(0), lambda: True)
    return "" if channel.hear() == {"done": True} else "not done"


def connect(door: MemoryDoor, key: str = KEY) -> Channel:
    return call("127.0.0.1", door.port, JOB, bytes.fromhex(key))


def test_a_copy_arrives_as_it_was_and_two_are_kept(here: Side, there: Side, door: MemoryDoor) -> None:
    bodies = {save: here.seal(here.own(1, n), save, n) for n, save in enumerate(("s.1", "s.2", "s.3"))}
    with connect(door) as channel:
        assert not put(channel, here, "s.1")
        assert not put(channel, here, "s.2", keep="s.1")
        assert there.copies(1) == ["s.2", "s.1"], "newest first"
        assert not put(channel, here, "s.3", keep="s.2")
    assert there.copies(1) == ["s.3", "s.2"]
    for slot in copied_slots(there.folder, 1):
        assert slot.path.read_bytes()[HEADER:] == bodies[slot.header.save]


def test_a_copy_that_others_do_not_have_gives_way_and_the_one_that_all_have_stays(
    here: Side, there: Side, door: MemoryDoor
) -> None:
    for n, save in enumerate(("s.1", "s.2", "s.3")):
        here.seal(here.own(1, n), save, n)
    with connect(door) as channel:
        for save, keep in (("s.1", ""), ("s.2", "s.1"), ("s.3", "s.1")):
            assert not put(channel, here, save, keep=keep)
    assert there.copies(1) == ["s.3", "s.1"]


def test_a_state_that_was_overwritten_on_the_way_is_no_copy(
    here: Side, there: Side, door: MemoryDoor
) -> None:
    here.seal(here.own(1, 0), "s.1", 1)
    here.seal(here.own(1, 1), "s.2", 2)
    with connect(door) as channel:
        assert not put(channel, here, "s.1")
        with pytest.raises(NeighbourFailed, match="overwritten"):
            put(channel, here, "s.2", keep="s.1", midway=lambda: _touch(here.own(1, 1)))
    assert there.copies(1) == ["s.1"]


def _touch(path: Path) -> None:
    """As the training does before it writes the next state there."""
    with open(path, "r+b") as file:
        file.write(bytes(header.HEAD.size))


def test_nothing_is_taken_from_a_generation_that_is_over(here: Side, there: Side, door: MemoryDoor) -> None:
    here.seal(here.own(1, 0), "s.1")
    there.plan(generation=2)
    with connect(door) as channel:
        assert put(channel, here, "s.1", generation=1) == "its generation is over"
        assert not put(channel, here, "s.1", generation=2)
    assert there.copies(1) == ["s.1"]


def test_a_copy_that_is_underway_when_its_generation_ends_is_none(
    here: Side, there: Side, door: MemoryDoor
) -> None:
    here.seal(here.own(1, 0), "s.1")
    with connect(door) as channel, pytest.raises(NeighbourFailed):
        put(channel, here, "s.1", midway=lambda: there.plan(generation=2))
    assert there.copies(1) == []


def test_copies_that_come_together_do_not_overfill_the_memory(
    here: Side, there: Side, door: MemoryDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each alone would fit. The memory of the second is not taken at all."""
    size = 8 << 20

    def usable(folder: Path) -> int:
        return 12 << 20 if folder != there.folder else (12 << 20) - tier.size(folder)

    monkeypatch.setattr(tier, "usable", usable)
    with connect(door) as one, connect(door) as other:
        one.say(ask="put", rank=1, generation=1, save="s.1", keep="", size=size)
        assert one.hear() == {"why": ""}
        other.say(ask="put", rank=2, generation=1, save="s.1", keep="", size=size)
        assert other.hear() == {"why": "there is no room for 8 MiB"}
        assert not tier.copy(there.folder, 2, 0).exists()


def test_a_copy_that_has_grown_out_of_its_room_leaves_none_of_it_taken(
    here: Side, there: Side, door: MemoryDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.seal(here.own(1, 0), "s.1")
    with connect(door) as channel:
        assert not put(channel, here, "s.1")
        monkeypatch.setattr(tier, "usable", lambda folder: 1 << 20)
        channel.say(ask="put", rank=1, generation=1, save="s.2", keep="", size=8 << 20)
        assert "no room" in channel.hear()["why"]
    assert list(there.folder.glob("copy-*")) == []


def test_what_is_damaged_on_the_way_is_refused(here: Side, there: Side, door: MemoryDoor) -> None:
    here.seal(here.own(1, 0), "s.1")
    key = bytes.fromhex(KEY)
    flipped = _flipping(door.port, at=2 << 20)
    with flipped as port, pytest.raises(NeighbourFailed), call("127.0.0.1", port, JOB, key) as channel:
        put(channel, here, "s.1")
    assert there.copies(1) == []


def test_nothing_of_a_state_can_be_read_on_the_way(here: Side, there: Side, door: MemoryDoor) -> None:
    body = here.seal(here.own(1, 0), "s.1")
    proxy = _flipping(door.port, at=None)
    with proxy as port, call("127.0.0.1", port, JOB, bytes.fromhex(KEY)) as channel:
        assert not put(channel, here, "s.1")
    sent = bytes(proxy.sent)
    assert len(sent) > len(body) and there.copies(1) == ["s.1"]
    assert not any(body[at : at + 16] in sent for at in range(0, len(body), 64 << 10))
    assert b'"s.1"' not in sent and bytes.fromhex(KEY) not in sent


def test_what_is_sent_keeps_within_its_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    clock = SimpleNamespace(monotonic=lambda: now_s, sleep=sleep)
    monkeypatch.setattr(slot_transfer, "time", clock)
    pace = SendingPace(10_000_000)
    for _ in range(50):
        pace.sent(1 << 20)
    assert now_s - 100.0 == pytest.approx(50 * (1 << 20) / 1e7)
    began_s, free = now_s, SendingPace(0)
    free.sent(1 << 30)
    assert now_s == began_s


@pytest.mark.parametrize(
    ("text", "rate"),
    [("", 5e8), ("20", 2e7), ("0", 0.0), ("-3", 5e8), ("x", 5e8), ("nan", 5e8), ("inf", 5e8)],
)
def test_the_bandwidth_is_what_the_environment_says(text: str, rate: float) -> None:
    assert bandwidth({"LOOM_NEIGHBOUR_MB_S": text}) == rate


class _flipping:  # used as a function
    """A proxy that changes one bit of what the caller sends, or none, and keeps what it sent."""

    def __init__(self, to: int, at: int | None) -> None:
        self._to, self._at = to, at
        self.sent = bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> int:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return int(self._listener.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        caller, _ = self._listener.accept()
        called = socket.create_connection(("127.0.0.1", self._to))
        back = threading.Thread(target=self._pump, args=(called, caller, None), daemon=True)
        back.start()
        self._pump(caller, called, self._at, self.sent)
        back.join(timeout=60)

    @staticmethod
    def _pump(
        source: socket.socket, sink: socket.socket, at: int | None, kept: bytearray | None = None
    ) -> None:
        seen = 0
        try:
            while data := bytearray(source.recv(65536)):
                if at is not None and seen <= at < seen + len(data):
                    data[at - seen] ^= 1
                seen += len(data)
                if kept is not None:
                    kept += data
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                with suppress(OSError):  # wakes the other thread, which a close would not
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


@pytest.mark.parametrize("job, key", [(JOB, "22" * 32), ("another", KEY)])
def test_who_does_not_know_the_jobs_key_is_not_served(
    there: Side, door: MemoryDoor, job: str, key: str
) -> None:
    there.seal(tier.copy(there.folder, 1, 0), "s.1")
    with pytest.raises(NeighbourFailed), call("127.0.0.1", door.port, job, bytes.fromhex(key)) as channel:
        channel.say(ask="list", rank=1)
        channel.hear()


def test_states_and_what_ranks_share_are_given_to_who_asks(here: Side, there: Side, door: MemoryDoor) -> None:
    own = there.seal(tier.copy(there.folder, 1, 0), "s.7")
    shared = there.seal(tier.file(there.folder, tier.SHARED, 2), "s.7")
    with connect(door) as channel:
        channel.say(ask="list", rank=1)
        (state,) = channel.hear()["states"]
        assert (state["save"], state["world"]) == ("s.7", 2)
        for kind, body in (("own", own), (tier.SHARED, shared)):
            channel.say(ask="get", rank=1, save="s.7", kind=kind)
            path = here.own(1, 0)
            slot_transfer.receive(channel, path, channel.hear()["size"], "s.7", lambda: True)
            assert path.read_bytes()[HEADER:] == body
        channel.say(ask="get", rank=1, save="s.8", kind="own")
        assert channel.hear() == {"size": 0}


def test_a_copy_without_room_is_refused_and_costs_nothing_else(
    here: Side, there: Side, door: MemoryDoor
) -> None:
    here.seal(here.own(1, 0), "s.1")
    with connect(door) as channel:
        channel.say(ask="put", rank=1, generation=1, save="s.9", keep="", size=1 << 60)
        assert "no room" in channel.hear()["why"]
        assert not put(channel, here, "s.1"), "the next one is taken"


def test_the_files_of_copies_are_released_with_the_job(there: Side) -> None:
    there.seal(tier.copy(there.folder, 1, 0), "s.1")
    tier.wanted(there.folder, 0).write_text(json.dumps({"save": "s.1", "keep": ""}))
    tier.copied(there.folder, 0).write_text("{}")
    tier.release(there.folder)
    assert not there.folder.exists()


class OneWorker:
    """What the copier needs of a host: where its states are, and who runs."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.worker = SimpleNamespace(ref=WorkerRef(JOB, 0, 1, 1), copy_trouble="")

    def running(self) -> list[SimpleNamespace]:
        return [self.worker]


def test_why_a_copy_failed_is_known_until_the_next_one_succeeds(
    here: Side, there: Side, door: MemoryDoor
) -> None:
    host = OneWorker(here.home)

    async def copied(save: str) -> None:
        here.seal(here.own(0, 0), save)
        tier.wanted(here.folder, 0).write_text(json.dumps({"save": save, "keep": ""}))
        task = asyncio.create_task(Copier(cast(Any, host)).run())
        while True:
            with suppress(OSError, ValueError):
                if json.loads(tier.copied(here.folder, 0).read_bytes())["save"] == save:
                    break
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(copied("s1"))  # nobody listens at the port of the plan
    assert host.worker.copy_trouble.startswith("other has no copy: ")
    plan = KeptPlan(1, MemoryPeer("other", "127.0.0.1", door.port), KEY)
    tier.neighbour(here.folder).write_bytes(msgspec.json.encode(plan))
    asyncio.run(copied("s2"))
    assert host.worker.copy_trouble == "" and there.copies(0) == ["s2"]


def test_copies_follow_one_another_only_where_cores_are_idle() -> None:
    assert rest_s(1.0, 0.1, 1.2) == 0.0
    assert rest_s(1.0, 5.0, 6.0) == pytest.approx(44.0), "2 % of a core"
    assert rest_s(1.0, 90.0, 91.0) == 0.0, "it was slow enough by itself"
    assert rest_s(0.0, 0.0, 1.0) == 0.0, "a kernel that does not say"
