"""Live rollback and saves on request, in one process: what comes back, what is undone, what descends."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torchloom as loom
from torchloom.checkpoint import live
from torchloom.checkpoint.saving.counting import StepCount
from torchloom.checkpoint.store.catalogue import list_checkpoints
from torchloom.checkpoint.store.reader import find
from torchloom.checkpoint.store.storage import open_storage
from torchloom.errors import CheckpointError, LoomError


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
    live.set_config_version(None)


class Training:
    """A model with dropout, a schedule, and data from a loader that is in the middle of its epoch."""

    def __init__(self, directory: Path, **options: object) -> None:
        torch.manual_seed(0)
        random.seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)
        self.loader = loom.ElasticLoader(list(torch.randn(400, 4)), global_batch=4, rank=0, world=1)
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        options = {"every": 5, "data": self.loader, **options}
        self.ckpt = loom.Checkpoint(**parts, dir=directory, name="job", **options)  # type: ignore[arg-type]
        self.at = self.ckpt.restore()
        self.batches = iter(self.loader)
        self.seen: list[list[int]] = []

    def run(self, until: int) -> None:
        """A loop that goes by what `step` returns."""
        while self.at < until:
            batch = next(self.batches)
            self.seen.append(self.loader.indices())
            self.optimizer.zero_grad()
            self.model(batch).pow(2).mean().backward()
            self.optimizer.step()
            self.scheduler.step()
            self.at = self.ckpt.step(self.at + 1)
            self.ckpt.wait()

    def state(self) -> list[object]:
        moments = [value.sum().item() for s in self.optimizer.state.values() for value in s.values()]
        parameters = [p.detach().sum().item() for p in self.model.parameters()]
        return [parameters, moments, self.scheduler.state_dict(), self.loader.state_dict(), random.getstate()]


def test_after_a_rollback_the_training_repeats_itself_to_the_bit(tmp_path: Path) -> None:
    plain = Training(tmp_path / "a")
    plain.run(24)
    training = Training(tmp_path / "b")
    held = [p.data_ptr() for p in training.model.parameters()]
    training.run(16)
    training.ckpt.at_end(lambda step: training.ckpt.roll_back(10))
    batch_before = len(training.seen)
    batch = next(training.batches)
    training.seen.append(training.loader.indices())
    training.model(batch).sum().backward()  # a step that goes wrong
    training.at = training.ckpt.step(17)
    assert training.at == 10
    training.run(24)
    assert training.state() == plain.state()
    assert training.seen[batch_before + 1 :] == plain.seen[10:]
    assert held == [p.data_ptr() for p in training.model.parameters()], "others hold these parameters"


def test_the_branch_that_was_left_stays_and_later_saves_descend_from_the_choice(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.run(15)
    assert training.ckpt.roll_back("step-5.g0") == 5
    training.at = 5
    training.run(12)
    entries = {entry.name: entry for entry in list_checkpoints(open_storage(str(tmp_path), {}), "job")}
    assert set(entries) == {"step-5.g0", "step-10.g0", "step-15.g0", "step-10.g0.b1"}
    assert entries["step-10.g0.b1"].parent == "step-5.g0" and entries["step-10.g0.b1"].newest
    assert [name for name, entry in entries.items() if entry.resumable] == ["step-10.g0.b1", "step-5.g0"]
    training.ckpt.close()
    again = Training(tmp_path)
    assert again.ckpt.restored is not None and again.ckpt.restored.name == "step-10.g0.b1"


def test_a_rollback_holds_even_if_the_job_dies_before_its_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOM_MEMORY_DIR", str(tmp_path / "memory"))
    monkeypatch.setenv("LOOM_GENERATION", "1")
    training = Training(tmp_path / "store")
    training.run(14)
    training.ckpt.roll_back(5)
    monkeypatch.setenv("LOOM_GENERATION", "2")
    again = Training(tmp_path / "store")
    assert again.at == 5, "memory still holds step 14, of the branch that was left"


def test_a_state_in_memory_can_be_gone_back_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_MEMORY_DIR", str(tmp_path / "memory"))
    monkeypatch.setenv("LOOM_GENERATION", "1")
    training = Training(tmp_path / "store", every=1000)
    training.run(3)
    offered = training.ckpt._staging.tier.offers()  # type: ignore[union-attr]
    (name,) = (str(kept.name) for kept in offered if kept.name.step == 3)
    prepared = training.ckpt.prepare_roll_back(name)
    assert (prepared.where, prepared.step) == ("memory", 3)
    prepared.apply()
    prepared.keep()
    monkeypatch.setenv("LOOM_GENERATION", "2")
    assert Training(tmp_path / "store", every=1000).at == 3, "its slot was not used again"


def test_undone_or_not_loadable_leaves_everything_as_it_was(tmp_path: Path) -> None:
    plain = Training(tmp_path / "a")
    plain.run(22)
    training = Training(tmp_path / "b")
    training.run(12)
    before = training.state()
    prepared = training.ckpt.prepare_roll_back(5)
    assert training.state() == before, "preparing changes nothing"
    prepared.apply()
    assert training.state() != before
    prepared.undo()
    prepared.undo()
    assert training.state() == before
    (victim,) = (tmp_path / "b" / "job" / "step-5.g0").glob("r0.*.own")
    data = bytearray(victim.read_bytes())
    data[-100] ^= 1
    victim.write_bytes(data)
    for which in (5, 7, "step-10.g3", "nonsense"):
        with pytest.raises(CheckpointError):
            training.ckpt.roll_back(which)
    assert training.state() == before
    training.run(22)
    assert training.state() == plain.state()
    found = find(open_storage(str(tmp_path / "b"), {}), "job").found
    assert found is not None and str(found.name) == "step-20.g0", "the branch that was never taken is nothing"


def test_a_store_that_is_away_refuses_the_rollback(tmp_path: Path) -> None:
    training = Training(tmp_path / "store")
    training.run(7)
    before = training.state()
    shutil.move(tmp_path / "store", tmp_path / "away")
    (tmp_path / "store").write_text("not a directory")
    with pytest.raises(LoomError):
        training.ckpt.roll_back(5)
    assert training.state() == before


def test_a_requested_save_is_in_the_store_at_the_end_of_the_step(tmp_path: Path) -> None:
    told: list[live.Request] = []
    live.set_config_version(lambda: 7)
    training = Training(tmp_path, every=1000)
    assert live.current() is training.ckpt
    training.run(3)
    request = training.ckpt.request("an operator wants it", told.append)
    assert not request.done
    training.run(4)
    assert told == [request] and request.done and (request.name, request.problem) == ("step-4.g0", "")
    found = find(open_storage(str(tmp_path), {}), "job").found
    assert found is not None and found.step == 4 and found.facts.config_version == 7
    assert training.ckpt.prepare_roll_back(4).config_version == 7
    training.ckpt.close()
    assert live.current() is not training.ckpt


def test_a_requested_save_that_fails_says_why(tmp_path: Path) -> None:
    training = Training(tmp_path / "store", every=1000)
    training.run(2)
    (tmp_path / "store" / "job").rename(tmp_path / "away")
    (tmp_path / "store" / "job").write_text("a file is where a directory must be")
    request = training.ckpt.request("now")
    training.run(3)
    assert request.done and request.problem and not request.name


def test_numbers_of_a_loop_that_counts_by_itself_and_of_one_that_follows() -> None:
    itself, follows = StepCount(), StepCount()
    for step in range(1, 26):
        itself.took(step)
        follows.took(step)
    itself.roll_back(10)
    follows.roll_back(10)
    assert [itself.took(step) for step in (26, 27, 28)] == [11, 12, 13]
    assert [follows.took(step) for step in (11, 12, 13)] == [11, 12, 13]
    itself.roll_back(20)  # forwards, to the branch that was left
    follows.roll_back(20)
    assert (itself.of(29), itself.took(29), follows.took(21)) == (21, 21, 21)
    every_tenth = StepCount()
    for step in (10, 20, 30):
        every_tenth.took(step)
    every_tenth.roll_back(10)
    assert [every_tenth.took(step) for step in (40, 50)] == [20, 30]
