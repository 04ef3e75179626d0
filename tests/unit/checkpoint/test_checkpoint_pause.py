"""Ranks let each other copy before they write; nobody who waits for a state waits for that pause."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import torchloom as loom
from torchloom.checkpoint.saving import saver
from torchloom.checkpoint.state.threads import BriefPause

HOURS_S = 7200.0


def paused(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """All pauses last for hours; how long they should have been."""
    wanted: list[float] = []

    def long(seconds: float) -> BriefPause:
        wanted.append(seconds)
        return BriefPause(HOURS_S)

    monkeypatch.setattr(saver, "BriefPause", long)
    return wanted


@pytest.mark.parametrize("tier", [False, True])
def test_who_waits_for_a_save_ends_its_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: bool
) -> None:
    if tier:
        monkeypatch.setenv("LOOM_MEMORY_DIR", str(tmp_path / "memory"))
    paused(monkeypatch)
    model = torch.nn.Linear(2048, 2048)  # more than is sealed at once
    with loom.Checkpoint(model=model, every=10**9, dir=tmp_path / "store", name="x") as ckpt:
        ckpt.save(1, wait=True)
        ckpt.save(2)
        ckpt.save(3)
    assert not ckpt.failures


def test_a_state_in_memory_is_sealed_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_MEMORY_DIR", str(tmp_path / "memory"))
    paused(monkeypatch)
    model = torch.nn.Linear(2048, 2048)
    with loom.Checkpoint(model=model, every=10**9, dir=tmp_path / "store", name="x") as ckpt:
        ckpt.save(1, wait=True)
        ckpt._staging.finish_making()
        for step in (2, 3):
            ckpt._saver.take(step, {}, to_store=False)
    assert ckpt._staging._sealed_event == 3


@pytest.mark.parametrize("ranks", [1, 2])
def test_only_ranks_with_neighbours_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    wanted = paused(monkeypatch)
    model = torch.nn.Linear(8, 8)
    with loom.Checkpoint(model=model, every=10**9, dir=tmp_path, name="x") as ckpt:
        ckpt.save(1, wait=True)
        object.__setattr__(ckpt._saver._group, "local_world", ranks)
        ckpt.save(2, wait=True)
    assert (wanted[-1] > 0) == (ranks > 1)
    assert wanted[-1] <= saver.OTHERS_COPY_WITHIN_S
