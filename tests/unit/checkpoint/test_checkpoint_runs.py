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
        if (name.startswith("LOOM_") and name != "LOOM_RESTORE_CHECK") or name in (
            "RANK",
            "WORLD_SIZE",
            "CHECKPOINT_DIR",
            "JOB_ID",
            "USE_S3",
        ):
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


def test_a_run_that_was_fenced_may_not_begin_again_under_its_successors_number(tmp_path: Path) -> None:
    """Two live jobs of one name in one directory: the first restarts with the number the second has taken."""
    first = Life(tmp_path, "a", 1)
    assert first.train(2) == 0
    second = Life(tmp_path, "b", 1)
    assert second.train(2) == 0 and second.ckpt.restored is not None
    assert second.ckpt.restored.generation == 2
    with pytest.raises(CheckpointFenced, match="another run of nightly"):
        Life(tmp_path, "a", 2)
    assert second.train(1) == 0, "the run that took over is not disturbed by the attempt"


@pytest.mark.parametrize("generation", [2, 3, 4, 9])
@pytest.mark.parametrize("restores", [True, False])
def test_a_run_that_was_fenced_is_refused_whatever_number_it_picks(
    tmp_path: Path, generation: int, restores: bool
) -> None:
    assert Life(tmp_path, "a", 1).train(1) == 0
    assert Life(tmp_path, "b", 1).train(1) == 0
    second = Life(tmp_path, "b", 2)
    assert second.train(1) == 0
    for _ in range(2):  # and a refused start leaves nothing that would let the next one pass
        with pytest.raises(CheckpointFenced, match="another run of nightly"):
            Life(tmp_path, "a", generation, restores=restores)
    assert second.train(1) == 0
    assert Life(tmp_path, "b", 3).first == 4


def test_a_run_that_was_numbered_while_the_store_was_away_commits_nothing_of_its_successor(
    tmp_path: Path,
) -> None:
    """Its number comes from memory, so only the commit can find out whose it is."""
    store, memory = tmp_path / "store", tmp_path / "memory"
    assert Life(store, "a", 1, memory).train(2) == 0
    second = Life(store, "b", 1)
    assert second.train(1) == 0
    store.rename(tmp_path / "away")
    store.touch()
    late = Life(store, "a", 2, memory)
    assert late.first == 2 and late.ckpt.restored is not None and late.ckpt.restored.generation == 2
    store.unlink()
    (tmp_path / "away").rename(store)
    assert late.train(2) == 2 and "another run of nightly" in late.ckpt.why_failed
    with pytest.raises(CheckpointError, match="another run"):
        late.ckpt.roll_back(3)
    assert second.train(3) == 0


def test_a_run_may_leave_out_numbers_of_lives_that_never_reached_the_store(tmp_path: Path) -> None:
    assert Life(tmp_path, "a", 1).train(1) == 0
    assert Life(tmp_path, "a", 4).train(1) == 0
    assert Life(tmp_path, "b", 1).name == "step-2.g4"
    storage = open_storage(str(tmp_path), {})
    assert read_generations(storage, "nightly").newest == 5


def test_a_damaged_fence_is_attributed_by_the_records_of_the_runs(tmp_path: Path) -> None:
    assert Life(tmp_path, "a", 1).train(1) == 0
    (tmp_path / "nightly/generations/1").write_bytes(b"")
    assert Life(tmp_path, "a", 2).train(1) == 0, "nobody else has a number: it is its own"
    assert Life(tmp_path, "b", 1).train(1) == 0
    (tmp_path / "nightly/generations/3").write_bytes(b"")
    with pytest.raises(CheckpointFenced, match="another run"):
        Life(tmp_path, "a", 3)
    assert Life(tmp_path, "b", 2).first == 3


def test_a_damaged_record_of_a_run_does_not_undo_that_it_was_fenced(tmp_path: Path) -> None:
    assert Life(tmp_path, "a", 1).train(1) == 0
    assert Life(tmp_path, "b", 1).train(1) == 0
    (tmp_path / "nightly/runs/a").write_bytes(b"")
    with pytest.raises(CheckpointFenced, match="another run"):
        Life(tmp_path, "a", 2)


def test_restoring_twice_in_one_life_takes_one_number(tmp_path: Path) -> None:
    for generation in (1, 2, 3):
        assert Life(tmp_path, "a", generation).train(1) == 0
    life = Life(tmp_path, "b", 1)
    assert life.ckpt.restore() == 3 and life.ckpt.restored is not None and life.ckpt.restored.generation == 4
    assert life.train(1) == 0
    assert Life(tmp_path, "b", 2).first == 4
