"""A disk with room for some checkpoints only: training continues, what is there stays, rules make room."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from disks import small_disk

import torchloom as loom
from torchloom.checkpoint import reporting
from torchloom.checkpoint.store import catalogue
from torchloom.checkpoint.store.local import LocalStorage

WIDTH = 512
"""About a MiB of state: four fit on the disk, with what belongs to them, and a fifth does not."""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("LOOM_") or name in ("RANK", "WORLD_SIZE", "CHECKPOINT_DIR", "JOB_ID", "USE_S3"):
            monkeypatch.delenv(name)
    yield


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", megabytes=5) as place:
        yield place


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    assert loom.Checkpoint  # its first use connects the ports
    monkeypatch.setattr(
        reporting.ports, "checkpoints", lambda text: found.append(json.loads(json.dumps(text)))
    )
    return found


class Training:
    def __init__(self, disk: Path, keep: int | None) -> None:
        self.storage = LocalStorage(disk / "store")
        self.model = torch.nn.Linear(WIDTH, WIDTH)
        self.ckpt = loom.Checkpoint(model=self.model, dir=disk / "store", name="job", every=1, keep=keep)
        self.step = self.ckpt.restore()

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.step += 1
            with torch.no_grad():
                self.model.weight.fill_(float(self.step))
            self.ckpt.step(self.step)
            self.ckpt.wait()

    def saved(self) -> list[int]:
        """Steps of whole checkpoints whose checksums are right, newest first."""
        found = [entry for entry in catalogue.list_checkpoints(self.storage, "job") if entry.whole]
        return [e.step for e in found if not catalogue.verify_checkpoint(self.storage, "job", e.name, 1.0)]


def test_without_keep_rules_what_is_there_stays_and_saving_resumes_when_there_is_room(
    disk: Path, told: list[dict[str, Any]]
) -> None:
    training = Training(disk, keep=None)
    for _ in range(12):
        training.train()
        if training.ckpt.failures:
            break
    full_at = training.step
    assert 3 <= full_at <= 6 and "the disk is full" in told[-1]["failing"]["why"]
    training.train(20)
    assert training.step == full_at + 20 and training.saved()[0] == full_at - 1, "the newest whole one stays"
    again = Training(disk, keep=None)
    assert again.step == full_at - 1 and float(again.model.weight[0, 0].detach()) == full_at - 1
    catalogue.delete(again.storage, "job", f"step-1.g{0}")
    catalogue.delete(again.storage, "job", f"step-2.g{0}")
    again.train()
    assert again.ckpt.failures == 0 and told[-1]["failing"] is None, "nothing that failed takes the room"
    assert again.saved()[0] == full_at


@pytest.mark.parametrize("keep", [2, 3, 4, 5])
def test_keep_rules_make_room_for_the_next_one(disk: Path, keep: int) -> None:
    """With room for four the rule keep=4 holds four, so the oldest goes before the next is written."""
    training = Training(disk, keep=keep)
    training.train(15)
    assert training.ckpt.failures == (0 if keep <= 4 else training.ckpt.failures)
    saved = training.saved()
    assert saved[0] == 15 or keep > 4
    assert len(saved) >= min(keep, 3) and saved == sorted(saved, reverse=True)


def test_room_for_one_only_is_never_bought_with_the_newest_whole_one(
    disk: Path, told: list[dict[str, Any]]
) -> None:
    training = Training(disk, keep=1)
    training.train()
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        file.write(b"x" * (5 * 2**20 - 2 * 2**20))
    assert training.ckpt.failures == 0
    training.train(5)
    assert training.ckpt.failures >= 1 and told[-1]["failing"], "there is no room beside the newest"
    assert training.saved()[0] >= 1, "it stays"
    ballast.unlink()
    training.train()
    assert training.saved() == [training.step] and told[-1]["failing"] is None
