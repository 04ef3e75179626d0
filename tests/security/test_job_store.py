"""A neighbour who reaches the port of a job's store writes under torchloom's keys: ranks decide as before."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from torch.distributed import TCPStore

from torchloom.checkpoint.saving.agenda import Agenda
from torchloom.checkpoint.saving.interval import Every, SavePace
from torchloom.core.transaction.attempt import ABORT, COMMIT
from torchloom.probe.steering.registers import Registers
from torchloom.wire.store_values import StoreValues

SECRET = b"of this generation"


def later_ns() -> int:
    return time.monotonic_ns() + 600 * 10**9


@pytest.fixture
def neighbour() -> Iterator[Any]:
    """A client of a real store that knows no secret."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)


def rank_of(neighbour: Any, secret: bytes = SECRET) -> tuple[Registers, StoreValues]:
    values = StoreValues(secret)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(neighbour.port)}
    return Registers(address, values), values


def test_a_decision_is_the_ranks_whatever_was_in_its_place(neighbour: Any) -> None:
    chance = random.Random(7)
    first, values = rank_of(neighbour)
    second, _ = rank_of(neighbour)
    before, _ = rank_of(neighbour, b"of the generation before")
    before.compare_set("loom/1/0.1", COMMIT, later_ns())
    replayed = neighbour.get("loom/1/0.1")
    first.compare_set("loom/1/0.2", ABORT, later_ns())
    other_key = neighbour.get("loom/1/0.2")
    foreign: list[Any] = [b"\xff\x00", ABORT, "", "x" * 100_000, replayed, other_key, other_key[:40]]
    foreign += [chance.randbytes(chance.randrange(1, 99)) for _ in range(20)]
    for number, value in enumerate(foreign):
        key = f"loom/1/{number + 1}.1"
        neighbour.set(key, value)
        assert first.look([key], later_ns()) == {}, "what is not ours is not there"
        assert first.compare_set(key, COMMIT, later_ns()) == COMMIT
        assert second.compare_set(key, ABORT, later_ns()) == COMMIT, "the first rank's value holds"
    assert values.ignored >= len(foreign)


def test_a_neighbour_who_keeps_writing_delays_a_decision_and_does_not_prevent_it(neighbour: Any) -> None:
    import threading

    over = threading.Event()
    key = "loom/1/1.1"

    def keep_writing() -> None:
        chance = random.Random(1)
        client = TCPStore("127.0.0.1", neighbour.port, is_master=False, wait_for_workers=False)
        while not over.is_set():
            client.set(key, chance.randbytes(16))

    thread = threading.Thread(target=keep_writing)
    thread.start()
    try:
        registers, _ = rank_of(neighbour)
        assert registers.compare_set(key, COMMIT, later_ns()) == COMMIT
    finally:
        over.set()
        thread.join()


class Notes:
    """The board of one process, as two ranks see it."""

    def __init__(self) -> None:
        self.held: dict[str, str | None] = {}

    def post(self, key: str, text: str) -> None:
        self.held[key] = text

    def read(self, key: str) -> str | None:
        return self.held[key]

    def peek(self, key: str) -> str | None:
        return self.held.get(key)

    def forget(self, key: str) -> None:
        self.held.pop(key, None)


def agenda(board: Any, leads: bool) -> Agenda:
    return Agenda(SavePace(Every(steps=10)), SavePace(Every(share=0.01)), leads, board)


def test_a_rank_that_misses_a_plan_trains_on_and_saves_again_with_the_others() -> None:
    board: Any = Notes()
    leader, follower = agenda(board, True), agenda(board, False)
    saved: dict[str, list[int]] = {"leader": [], "follower": []}
    for step in range(1, 61):
        for name, rank in (("leader", leader), ("follower", follower)):
            decision = rank.decide(step, 0.1, False, False)
            if decision is not None and decision.disk:
                saved[name].append(step)
            if name == "leader" and step in (20, 40):
                # A neighbour has written something else there, and in a place that comes much later.
                board.held[f"plan/{leader._number}"] = board.held["plan/1000"] = None
    assert saved["leader"] == [10, 20, 30, 40, 50, 60]
    assert saved["follower"][:1] == [10] and saved["follower"][-1:] == [60]
    assert saved["follower"] == [10, 30, 50, 60]
