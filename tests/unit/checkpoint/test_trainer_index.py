"""Checkpoints that a framework's own trainer saved: recorded, listed, chosen for a restart; never touched."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from torchloom.agent.checkpoints import catalogue
from torchloom.checkpoint.store import trainer_index
from torchloom.checkpoint.store.trainer_index import TrainerCheckpoint
from torchloom.integrations import resume
from torchloom.model.checkpoints import CheckpointPlace
from torchloom.model.messages import AskCheckpoints, CheckpointAnswer, CheckpointVerb


def save(tmp_path: Path, step: int, generation: int = 1) -> TrainerCheckpoint:
    """A finished save, recorded."""
    path = tmp_path / f"checkpoint-{step}"
    path.mkdir(exist_ok=True)
    (path / "trainer_state.json").write_text("x" * step)
    made = TrainerCheckpoint(step, generation, str(path), at_s=float(step), size=step, metrics={"loss": 0.5})
    trainer_index.record(tmp_path / "j.trainer.json", made)
    return made


def ask(tmp_path: Path, verb: CheckpointVerb, which: str = "") -> CheckpointAnswer:
    index = str(tmp_path / "j.trainer.json")
    place = CheckpointPlace(str(tmp_path), "j", framework="transformers", index=index)
    return catalogue.answer(AskCheckpoints(job="j", place=place, verb=verb, which=which), 0.0)


def test_what_was_saved_is_listed_newest_first_while_it_exists(tmp_path: Path) -> None:
    first, second, third = save(tmp_path, 20), save(tmp_path, 40), save(tmp_path, 60)
    Path(second.path, "trainer_state.json").unlink()
    Path(second.path).rmdir()  # the trainer's own limit removed it
    answer = ask(tmp_path, "list")
    assert [(one.name, one.where, one.newest) for one in answer.entries] == [
        ("step-60.g1", third.path, True),
        ("step-20.g1", first.path, False),
    ]
    assert answer.entries[0].metrics == {"loss": 0.5} and answer.entries[0].size == 60


def test_a_second_save_to_the_same_place_takes_the_place_of_the_first(tmp_path: Path) -> None:
    made = save(tmp_path, 20)
    trainer_index.record(tmp_path / "j.trainer.json", replace(made, generation=3))
    assert [one.name for one in ask(tmp_path, "list").entries] == ["step-20.g3"]


@pytest.mark.parametrize("verb", ["pin", "unpin", "delete", "damage"])
def test_files_of_a_trainer_are_not_touched(tmp_path: Path, verb: CheckpointVerb) -> None:
    made = save(tmp_path, 20)
    answer = ask(tmp_path, verb, made.name)
    assert answer.problem == "usage" and answer.why.startswith("transformers owns this checkpoint")
    assert ask(tmp_path, "purge").problem == "" and Path(made.path).exists()


def test_one_that_does_not_exist_is_missing(tmp_path: Path) -> None:
    assert ask(tmp_path, "verify", "step-3.g1").problem == "missing"
    assert ask(tmp_path, "list").entries == ()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"checkpoints": [{"step": "x"}]}', '{"checkpoints": 3}'])
def test_a_damaged_index_lists_nothing_and_the_next_save_mends_it(tmp_path: Path, text: str) -> None:
    index = tmp_path / "j.trainer.json"
    index.write_text(text)
    assert trainer_index.read(index) == []
    save(tmp_path, 20)
    assert [one.step for one in trainer_index.read(index)] == [20]
    assert json.loads(index.read_text())["checkpoints"][0]["step"] == 20


def test_a_restart_resumes_only_where_the_job_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOOM_RESUME", "LOOM_RESTORE_STEP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOOM_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("LOOM_JOB", "j")
    first, second = save(tmp_path, 20), save(tmp_path, 40)
    (tmp_path / "checkpoint-60").mkdir()  # a save that a crash cut short

    def never(directory: str, step: int | None) -> str | None:
        raise AssertionError("the index knows it")

    assert resume.find(str(tmp_path), never) is None
    monkeypatch.setenv("LOOM_RESUME", "auto")
    assert resume.find(str(tmp_path), never) == second.path
    monkeypatch.setenv("LOOM_RESTORE_STEP", "20")
    assert resume.find(str(tmp_path), never) == first.path
    monkeypatch.setenv("LOOM_JOB", "another")
    assert resume.find(str(tmp_path), lambda directory, step: f"{step} in {directory}") == f"20 in {tmp_path}"
