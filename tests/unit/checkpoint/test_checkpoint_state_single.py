"""`loom.Checkpoint` in one process: save, restore, damage, failing stores, memory before disk."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torchloom as loom
from torchloom.checkpoint.state import staging
from torchloom.checkpoint.store.catalogue import list_checkpoints
from torchloom.checkpoint.store.reader import find
from torchloom.checkpoint.store.storage import open_storage
from torchloom.errors import CheckpointDamaged, CheckpointFenced, UsageError


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if (name.startswith("LOOM_") and name != "LOOM_RESTORE_CHECK") or name in (
            "RANK",
            "WORLD_SIZE",
            "CHECKPOINT_DIR",
            "JOB_ID",
            "USE_S3",
        ):
            monkeypatch.delenv(name)
    yield


class Training:
    """A model that learns noise."""

    def __init__(self, directory: Path, seed: int = 0, **options: object) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        self.ckpt = loom.Checkpoint(**parts, dir=directory, name="job", **options)  # type: ignore[arg-type]

    def run(self, first: int, last: int) -> list[float]:
        for step in range(first + 1, last + 1):
            self.optimizer.zero_grad()
            self.model(torch.randn(4, 8)).pow(2).mean().backward()
            self.optimizer.step()
            self.scheduler.step()
            self.ckpt.step(step, loss=random.random())
            self.ckpt.wait()  # so that no two saves are merged
        self.ckpt.close()
        return [float(p.detach().sum()) for p in self.model.parameters()] + self.scheduler.get_last_lr()


def test_a_resumed_run_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    plain = Training(tmp_path / "a", every=5)
    assert plain.ckpt.restore() == 0
    expected = plain.run(0, 12)
    first = Training(tmp_path / "b", every=5)
    first.ckpt.restore()
    first.run(0, 7)
    second = Training(tmp_path / "b", seed=99, every=5)
    assert second.ckpt.restore() == 5
    assert second.run(5, 12) == expected


def test_the_manifest_tells_what_the_state_is(tmp_path: Path) -> None:
    training = Training(tmp_path, every=4)
    training.ckpt.restore()
    training.run(0, 9)
    found = find(open_storage(str(tmp_path), {}), "job").found
    assert found is not None and found.step == 8
    assert found.facts.parent == "step-4.g0" and "loss" in found.facts.metrics
    assert found.facts.lineage["torch"] == torch.__version__


def test_states_from_before_the_numbers_broke_are_kept(tmp_path: Path) -> None:
    training = Training(tmp_path, every=1, keep=2)
    training.ckpt.restore()
    for step in range(1, 12):
        training.ckpt.step(step, loss=0.5 if step < 5 else float("nan"))
        training.ckpt.wait()
    training.ckpt.close()
    left = list_checkpoints(open_storage(str(tmp_path), {}), "job")
    assert [(entry.step, entry.finite) for entry in left] == [(11, False), (10, False), (4, True), (3, True)]


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training = Training(tmp_path, every=5)
    training.ckpt.restore()
    training.run(0, 14)
    (victim,) = (tmp_path / "job" / "step-10.g0").glob("r0.*.own")
    data = bytearray(victim.read_bytes())
    data[-100] ^= 1
    victim.write_bytes(data)
    again = Training(tmp_path, seed=7, every=5)
    assert again.ckpt.restore() == 5
    assert "step-10.g0" in capsys.readouterr().err


def test_if_every_state_is_damaged_it_says_so_instead_of_training_on(tmp_path: Path) -> None:
    training = Training(tmp_path, every=5)
    training.ckpt.restore()
    training.run(0, 5)
    (victim,) = (tmp_path / "job" / "step-5.g0").glob("r0.*.own")
    victim.write_bytes(b"\x00" * victim.stat().st_size)
    with pytest.raises(CheckpointDamaged):
        Training(tmp_path, every=5).ckpt.restore()


def test_memory_is_newer_than_disk_and_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_MEMORY_DIR", str(tmp_path / "memory"))
    plain = Training(tmp_path / "a", every=100)
    plain.ckpt.restore()
    expected = plain.run(0, 12)
    (tmp_path / "memory" / "own-0.0").unlink()
    for left in (tmp_path / "memory").glob("*"):
        left.unlink()
    first = Training(tmp_path / "b", every=100)
    first.ckpt.restore()
    first.run(0, 7)
    second = Training(tmp_path / "b", seed=99, every=100)
    step = second.ckpt.restore()
    assert 0 < step <= 7 and second.ckpt.restored is not None and second.ckpt.restored.where == "memory"
    assert second.run(step, 12) == expected


def test_damaged_memory_falls_back_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_MEMORY_DIR", str(tmp_path / "memory"))
    training = Training(tmp_path / "b", every=2)
    training.ckpt.restore()
    training.run(0, 7)
    for slot in (tmp_path / "memory").glob("own-0.*"):
        data = bytearray(slot.read_bytes())
        data[4096 + 6000] ^= 1
        slot.write_bytes(data)
    again = Training(tmp_path / "b", every=2)
    assert again.ckpt.restore() == 6
    assert again.ckpt.restored is not None and again.ckpt.restored.where == "the store"


def test_a_failing_store_does_not_end_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training(tmp_path / "store", every=2)
    training.ckpt.restore()
    (tmp_path / "store" / "job").rename(tmp_path / "away")
    (tmp_path / "store" / "job").write_text("a file is where a directory must be")
    training.run(0, 9)
    assert training.ckpt.failures >= 1
    assert "failed" in capsys.readouterr().err


def test_an_older_life_cannot_save_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_GENERATION", "2")
    new = Training(tmp_path, every=2)
    new.ckpt.restore()
    monkeypatch.setenv("LOOM_GENERATION", "1")
    with pytest.raises(CheckpointFenced):
        Training(tmp_path, every=2).ckpt.restore()
    new.run(0, 4)


def test_ranks_that_cannot_agree_are_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="needs a process group"):
        Training(tmp_path, every="10s").ckpt.restore()
    with pytest.raises(UsageError, match="needs a process group"):
        Training(tmp_path, every=5).ckpt.restore()


def test_a_chosen_step_is_restored(tmp_path: Path) -> None:
    training = Training(tmp_path, every=5)
    training.ckpt.restore()
    training.run(0, 17)
    assert Training(tmp_path).ckpt.restore(step=10) == 10


def test_save_on_request_and_keep(tmp_path: Path) -> None:
    training = Training(tmp_path, every=1000, keep=2)
    training.ckpt.restore()
    for step in (3, 5, 8):
        training.ckpt.save(step, wait=True)
    assert sorted(p.name for p in (tmp_path / "job").glob("step-*")) == ["step-5.g0", "step-8.g0"]


def test_another_model_is_refused_in_one_sentence(tmp_path: Path) -> None:
    training = Training(tmp_path, every=5)
    training.ckpt.restore()
    training.run(0, 5)
    other = loom.Checkpoint(model=torch.nn.Linear(3, 3), dir=tmp_path, name="job")
    with pytest.raises(UsageError, match="does not fit model"):
        other.restore()


def test_things_without_state_are_refused() -> None:
    with pytest.raises(UsageError, match="state_dict"):
        loom.Checkpoint(model=object())
    with pytest.raises(UsageError, match="nothing to save"):
        loom.Checkpoint()


@pytest.mark.parametrize("inline", [0, 1 << 30])
def test_a_state_in_memory_is_sealed_when_close_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: int
) -> None:
    monkeypatch.setattr(staging, "INLINE", inline)
    monkeypatch.setenv("LOOM_MEMORY_DIR", str(tmp_path / "memory"))
    training = Training(tmp_path / "store", every=1000)
    training.ckpt.restore()
    for step in (1, 2, 3):
        training.ckpt.save(step)
    training.ckpt.close()
    again = Training(tmp_path / "store", seed=5)
    assert again.ckpt.restore() == 3 and again.ckpt.restored is not None
    assert again.ckpt.restored.where == "memory"


class Ema:
    """An object of the script, with a tensor of its own."""

    def __init__(self) -> None:
        self.average = torch.zeros(1 << 18)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"average": self.average}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.average = state["average"]


def test_large_states_that_were_not_there_come_back_and_an_objects_own_may_be_resized(tmp_path: Path) -> None:
    torch.manual_seed(3)

    def training() -> tuple[torch.nn.Module, torch.optim.Optimizer, Ema, loom.Checkpoint]:
        model = torch.nn.Linear(512, 700)
        optimizer, ema = torch.optim.Adam(model.parameters()), Ema()
        parts = {"model": model, "optimizer": optimizer, "ema": ema}
        return model, optimizer, ema, loom.Checkpoint(**parts, dir=tmp_path, name="job", every=1)

    model, optimizer, ema, ckpt = training()
    model(torch.randn(4, 512)).pow(2).mean().backward()
    optimizer.step()
    ema.average.normal_()
    ckpt.step(1)
    ckpt.wait()
    ckpt.close()
    model2, optimizer2, ema2, again = training()
    assert again.restore() == 1
    for old, new in zip(model.parameters(), model2.parameters(), strict=True):
        assert torch.equal(old, new)
        for name, value in optimizer.state[old].items():
            assert torch.equal(optimizer2.state[new][name], value), name
    assert torch.equal(ema2.average, ema.average)
    ema2.average.resize_(1 << 19)
    again.close()
    model2(torch.randn(4, 512)).pow(2).mean().backward()
    optimizer2.step()
