"""What a worker remembers of the store: the newest, and never without bound."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest

from torchloom.probe.steering import registers as room
from torchloom.probe.steering.registers import Registers


class FakeStore:
    """The three calls of torch's store that are used."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.asked: list[str] = []

    def check(self, keys: Iterable[str]) -> bool:
        return all(key in self.held for key in keys)

    def get(self, key: str) -> bytes:
        self.asked.append(key)
        return self.held[key]

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        return self.held.setdefault(key, value.encode())


def later_ns() -> int:
    return time.monotonic_ns() + 60 * 10**9


def test_what_was_decided_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_KNOWN", 8)
    store = FakeStore()
    registers = Registers({})
    connect: Any = lambda: store  # noqa: E731
    monkeypatch.setattr(registers, "_connect", connect)
    for number in range(40):
        assert registers.compare_set(f"own/{number}", "COMMIT", later_ns()) == "COMMIT"
        store.held[f"peer/{number}"] = b"COMMIT"
        assert registers.look([f"own/{number}", f"peer/{number}", "none"], later_ns()) == {
            f"own/{number}": "COMMIT",
            f"peer/{number}": "COMMIT",
        }
    assert len(registers._known) == 8
    assert registers.look(["own/39", "peer/39"], later_ns()) and store.asked[-1] == "peer/39"
    assert store.asked.count("peer/39") == 1, "the newest is not asked for again"
    assert registers.look(["own/0"], later_ns()) == {"own/0": "COMMIT"}, "the oldest is asked for again"
    everybody = [f"peer/{number}" for number in range(40)]
    assert len(registers.look(everybody, later_ns())) == 40, "also more than are kept, at once"
