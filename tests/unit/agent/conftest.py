"""Two hosts whose agents copy states in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_sides import Side, sides

from torchloom.agent.neighbour.door import MemoryDoor


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still for a while is no reason to fail."""
    monkeypatch.setattr("torchloom.agent.neighbour.channel.STALLED_S", 300.0)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Side]:
    yield from sides(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Side]:
    yield from sides(tmp_path / "there")


@pytest.fixture
def door(there: Side) -> Iterator[MemoryDoor]:
    """The other host's agent answers."""
    there.home.root.mkdir(parents=True, exist_ok=True)
    opened = MemoryDoor(there.home, "127.0.0.1")
    opened.open()
    yield opened
    opened.close()
