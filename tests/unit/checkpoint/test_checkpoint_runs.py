"""Several submissions of one name in one store: each goes on from the last and fences those before it off."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torchloom as loom
from torchloom.checkpoint.store.generations import read_generations
from torchloom.checkpoint.store.local import LocalStorage
from torchloom.checkpoint.store.names import run_key
from torchloom.checkpoint.store.runs import number_in_store, recall, run_of
from torchloom.checkpoint.store.storage import open_storage
from torchloom.errors import CheckpointError, CheckpointFenced, StoreUnreachable


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("LOOM_") or name in ("RANK", "WORLD_SIZE", "CHECKPOINT_DIR", "JOB_ID", "USE_S3"):
            monkeypatch.delenv(name)
    yield


class Life:
    """One generation of one submission."""

    def __init__(
        self, store: Path, run: str, generation: int, memory: Path | None = None, restores: bool = True
    ) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOOM_RUN", run)
            patch.setenv("LOOM_GENERATION", str(generation))
            if memory is not None:
                patch.setenv("LOOM_MEMORY_DIR", str(memory))
            self.model = torch.nn.Linear(2, 2)
            self.ckpt = loom.Checkpoint(model=self.model, dir=store, name="nightly", every=1)
            if restores:
                self.first = self.step = self.ckpt.restore()
            else:
                self.step = 0
                self.ckpt.wait()  # it takes its number

    def train(self, steps: int) -> int:
        """Train on; saves that failed."""
        for _ in range(steps):
            self.step += 1
            self.ckpt.step(self.step)
            self.ckpt.wait()
        return self.ckpt.failures

    @property
    def name(self) -> str:
        assert self.ckpt.restored is not None
        return self.ckpt.restored.name


def test_a_job_submitted_again_goes_on_whatever_its_predecessors_counted(tmp_path: Path) -> None:
    for generation in (1, 2, 3):
        assert Life(tmp_path, "a", generation).train(2) == 0
    again = Life(tmp_path, "b", 1)
    assert again.first == 6 and again.name == "step-6.g3" and again.train(1) == 0
    assert Life(tmp_path, "b", 2).name == "step-7.g4"
    third = Life(tmp_path, "c", 1)
    assert third.name == "step-7.g4" and third.train(1) == 0
    storage = open_storage(str(tmp_path), {})
    assert read_generations(storage, "nightly").newest == 6


def test_a_process_of_an_earlier_submission_can_save_no_more(tmp_path: Path) -> None:
    """Of a host that was given up and lives: its generation is higher than that of its successor."""
    for generation in (1, 2, 3, 4):
        lost = Life(tmp_path, "a", generation)
        assert lost.train(1) == 0
    assert Life(tmp_path, "b", 1).train(1) == 0
    assert lost.train(1) == 1
    with pytest.raises(CheckpointFenced):
        Life(tmp_path, "a", 4)


def test_a_late_process_of_the_same_submission_is_fenced_off_too(tmp_path: Path) -> None:
    assert Life(tmp_path, "a", 1).train(1) == 0
    assert Life(tmp_path, "b", 2).first == 1, "the first that comes to the store need not be generation 1"
    with pytest.raises(CheckpointFenced):
        Life(tmp_path, "b", 1)


def test_the_number_is_known_while_the_store_is_away(tmp_path: Path) -> None:
    store, memory = tmp_path / "store", tmp_path / "memory"
    assert Life(store, "a", 1).train(1) == 0
    second = Life(store, "b", 1, memory)
    assert second.train(2) == 0
    store.rename(tmp_path / "away")
    store.touch()
    third = Life(store, "b", 2, memory)
    assert third.first == 3 and third.ckpt.restored is not None and third.ckpt.restored.generation == 3
    store.unlink()
    (tmp_path / "away").rename(store)
    assert third.train(1) == 0, "saves go on once the store is back"
    with pytest.raises(CheckpointError):
        Life(store, "b", 1)
    assert recall(memory, "other") is None


def test_a_damaged_record_is_made_anew(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), {})
    assert number_in_store(storage, "j", "r", 1).number_of(3) == 3
    storage.put(run_key("j", "r"), [b"{"])
    assert number_in_store(storage, "j", "r", 2).number_of(2) == 2
    assert number_in_store(storage, "j", "r", 3).number_of(3) == 3


def test_a_name_of_a_run_cannot_lead_anywhere() -> None:
    assert run_of({"LOOM_RUN": "18a4f"}) == "18a4f"
    assert run_of({"LOOM_RUN": "../x"}) == run_of({}) == ""


def test_a_script_that_never_restores_is_numbered_like_any_other(tmp_path: Path) -> None:
    for generation in (1, 2, 3):
        assert Life(tmp_path, "a", generation).train(2) == 0
    for generation in (1, 2):  # each begins from nothing, and neither is fenced off nor mistaken for another
        assert Life(tmp_path, "b", generation, restores=False).train(1) == 0
    found = {path.parent.name for path in tmp_path.glob("nightly/*/manifest.json")}
    assert {"step-6.g3", "step-1.g4", "step-1.g5"} <= found
    assert Life(tmp_path, "b", 3).name == "step-1.g5", (
        "it goes on from the newest line, not from the highest step"
    )


def test_a_script_that_never_restores_trains_on_while_the_store_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*args: object) -> None:
        raise StoreUnreachable("nobody answers")

    with monkeypatch.context() as broken:
        for verb in ("put", "put_new", "get", "list"):
            broken.setattr(LocalStorage, verb, away)
        life = Life(tmp_path, "a", 1, restores=False)
        assert life.train(2) == 2, "saves fail, and training goes on"
    assert life.train(1) == 2
    assert Life(tmp_path, "a", 2).name == "step-3.g1"
