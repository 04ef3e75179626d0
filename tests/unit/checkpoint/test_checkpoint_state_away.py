"""A store that is away, read-only or failing when a job begins: nothing is lost, and nothing is guessed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torchloom as loom
from torchloom.checkpoint.saving.interval import Every
from torchloom.checkpoint.state import streaming
from torchloom.checkpoint.store.catalogue import list_checkpoints
from torchloom.checkpoint.store.local import LocalStorage
from torchloom.checkpoint.store.storage import open_storage
from torchloom.errors import CheckpointDamaged, CheckpointError, StorageFailed


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


class Job:
    """Generations of one job, each ending without a word."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.memory = place / "store", place / "memory"
        self._env, self._generation = monkeypatch, 0
        monkeypatch.setenv("LOOM_MEMORY_DIR", str(self.memory))

    def begin(self, step: int | None = None) -> int:
        self._generation += 1
        self._env.setenv("LOOM_GENERATION", str(self._generation))
        torch.manual_seed(self._generation)
        self.model = torch.nn.Linear(4, 4)
        self.ckpt = loom.Checkpoint(model=self.model, dir=self.store, name="job", every=5)
        restored = self.ckpt.restore(step)
        self.ckpt._saver.agenda.memory.every = Every(steps=1)
        return restored

    def train(self, first: int, last: int) -> None:
        for step in range(first + 1, last + 1):
            with torch.no_grad():
                self.model.weight.fill_(step)
            self.ckpt.step(step)
            self.ckpt.wait()
        self.ckpt._staging.look(wait=True)

    def store_goes(self) -> None:
        self.store.rename(self.store.parent / "away")
        self.store.write_text("not a directory")

    def store_comes_back(self) -> None:
        self.store.unlink()
        (self.store.parent / "away").rename(self.store)

    def line(self) -> list[str]:
        entries = list_checkpoints(open_storage(str(self.store), {}), "job")
        return [entry.name for entry in entries if entry.resumable]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path, monkeypatch)


def test_memory_counts_when_the_store_is_away(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.begin()
    job.train(0, 13)
    job.store_goes()
    assert job.begin() == 13
    assert float(job.model.weight.detach()[0, 0]) == 13
    job.train(13, 16)
    assert "because" in capsys.readouterr().err
    assert job.begin() == 16
    job.store_comes_back()
    job.train(16, 20)
    assert job.line() == ["step-20.g3", "step-10.g1", "step-5.g1"], "generation 2 is on the line, unseen"


def test_what_was_left_by_a_rollback_is_not_taken_from_memory(job: Job) -> None:
    job.begin()
    job.train(0, 13)
    assert job.begin(step=5) == 5
    job.store_goes()
    with pytest.raises(CheckpointError, match="memory"):
        job.begin()
    with pytest.raises(CheckpointError, match="memory"):
        job.begin()
    job.store_comes_back()
    assert job.begin() == 5


def test_what_was_left_by_a_live_rollback_is_not_taken_either(job: Job) -> None:
    job.begin()
    job.train(0, 13)
    job.ckpt.roll_back(5)
    job.store_goes()
    with pytest.raises(CheckpointError, match="memory"):
        job.begin()


def test_the_branch_of_a_rollback_counts_once_it_is_in_memory(job: Job) -> None:
    job.begin()
    job.train(0, 13)
    job.ckpt.roll_back(5)
    job.train(5, 7)
    job.store_goes()
    assert job.begin() == 7
    assert job.ckpt.restored is not None and job.ckpt.restored.name == "step-7.g1.b1"
    job.store_comes_back()
    job.train(7, 10)
    assert job.line() == ["step-10.g2", "step-5.g1"]


def test_a_choice_that_only_the_host_knows_is_recorded_later(job: Job) -> None:
    job.begin()
    job.train(0, 13)
    job.store_goes()
    job.begin()
    job.train(13, 16)
    job.store_comes_back()
    assert job.begin() == 16, "generation 2 never wrote to the store"
    chosen = {p.name for p in (job.store / "job" / "generations").glob("*.from")}
    assert chosen == {"1.from", "2.from", "3.from"}


def test_a_generation_that_ran_elsewhere_is_not_guessed_about(job: Job) -> None:
    job.begin()
    job.train(0, 13)
    job._generation += 1  # on other hosts, whatever it did there
    job.store_goes()
    with pytest.raises(CheckpointError, match="memory"):
        job.begin()
    job.store_comes_back()
    assert job.begin() == 13


def test_no_store_and_no_memory_does_not_begin_from_nothing(job: Job) -> None:
    job.begin()
    job.train(0, 6)
    for file in job.memory.iterdir():
        file.unlink()
    job.store_goes()
    with pytest.raises(CheckpointError):
        job.begin()


def test_damaged_states_are_never_taken_for_a_fresh_start(job: Job) -> None:
    job.begin()
    job.train(0, 6)
    for file in job.memory.iterdir():
        file.unlink()
    (victim,) = (job.store / "job" / "step-5.g1").glob("r0.*.own")
    victim.write_bytes(b"\x00" * victim.stat().st_size)
    for _ in range(3):  # also when it is known to be damaged already
        with pytest.raises(CheckpointDamaged):
            job.begin()


def test_a_store_that_fails_while_it_is_read_is_not_damage(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.begin()
    job.train(0, 11)
    for file in job.memory.iterdir():
        file.unlink()

    def fails(*args: object) -> None:
        raise StorageFailed("the store did not answer")

    with monkeypatch.context() as broken:
        broken.setattr(streaming, "read_file", fails)
        with pytest.raises(CheckpointError, match="did not answer"):
            job.begin()
    assert job.begin() == 10, "it is not marked as damaged, and no older one is taken for it"


def test_a_read_only_store_is_told_in_one_sentence(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.begin()
    job.train(0, 6)

    def refuses(storage: LocalStorage, key: str, data: bytes) -> bool:
        raise StorageFailed(f"could not write {key}, because the file system is read-only")

    monkeypatch.setattr(LocalStorage, "put_new", refuses)
    assert job.begin() == 6, "memory is enough"
    for file in job.memory.iterdir():
        file.unlink()
    with pytest.raises(CheckpointError, match=r"read-only.*beginning from nothing would lose"):
        job.begin()
