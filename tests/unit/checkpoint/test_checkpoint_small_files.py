"""Every small file of a store, empty, cut short, full of garbage, of wrong types: what it means, and that a
job whose checkpoints are whole starts all the same."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torchloom as loom
from torchloom.checkpoint.store import catalogue, local
from torchloom.checkpoint.store.generations import begin, read_generations, settle
from torchloom.checkpoint.store.local import LocalStorage
from torchloom.checkpoint.store.manifest import seal, unseal
from torchloom.checkpoint.store.names import Branch, CheckpointName
from torchloom.checkpoint.store.reader import find
from torchloom.core.retention import KeepRules
from torchloom.errors import StorageFailed

JOB = "small"
DAMAGES = {
    "empty": lambda data: b"",
    "cut short": lambda data: data[: len(data) // 2],
    "garbage": lambda data: b"\xff\x00garbage",
    "not an object": lambda data: b"[1, 2]",
    "sealed, of wrong types": lambda data: seal({key: [1] for key in unseal(data, "it")}),
    "sealed, of wrong values": lambda data: seal(dict.fromkeys(unseal(data, "it"), 1e309 if 0 else -7)),
    "sealed and empty": lambda data: seal({}),
}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("LOOM_") or name in ("RANK", "WORLD_SIZE", "CHECKPOINT_DIR", "JOB_ID", "USE_S3"):
            monkeypatch.delenv(name)
    yield


def live(store: Path, generation: int, steps: int, run: str = "r", every: int = 1) -> loom.Checkpoint:
    """One life of a job; it has saved after every step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOM_GENERATION", str(generation))
        patch.setenv("LOOM_RUN", run)
        ckpt = loom.Checkpoint(model=torch.nn.Linear(2, 2), dir=store, name=JOB, every=every)
        first = ckpt.restore()
        for step in range(first + 1, first + steps + 1):
            ckpt.step(step)
            ckpt.wait()
    return ckpt


def train(ckpt: loom.Checkpoint, *steps: int) -> None:
    for step in steps:
        ckpt.step(step)
        ckpt.wait()


def restored(ckpt: loom.Checkpoint) -> str:
    assert ckpt.restored is not None
    return ckpt.restored.name


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("record", ["generations/2.from", "generations/2", "generations/1.from", "runs/r"])
def test_a_damaged_record_does_not_keep_a_job_from_its_whole_checkpoints(
    tmp_path: Path, record: str, damage: str
) -> None:
    live(tmp_path, 1, 2)
    live(tmp_path, 2, 2)
    path = tmp_path / JOB / record
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    third = live(tmp_path, 3, 2)
    assert restored(third) == "step-4.g2" and third.failures == 0
    assert restored(live(tmp_path, 4, 0)) == "step-6.g3"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_choice_that_cannot_be_read_is_that_of_the_first_state_saved_on_it(
    tmp_path: Path, damage: str
) -> None:
    """Generation 1 made steps 1 to 4, 2 went back to 2: without the record, step 4 would be an ancestor."""
    live(tmp_path, 1, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOM_RESTORE_STEP", "2")
        assert restored(live(tmp_path, 2, 1)) == "step-2.g1"
    path = tmp_path / JOB / "generations/2.from"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    shutil.rmtree(tmp_path / JOB / "step-3.g2")  # with its own state gone, its line goes on at the choice
    ckpt = live(tmp_path, 3, 0)
    assert restored(ckpt) == "step-4.g1", "with nothing saved on it, nobody knows of the choice any more"
    shutil.rmtree(tmp_path)
    live(tmp_path, 1, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOM_RESTORE_STEP", "2")
        live(tmp_path, 2, 2)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    storage = LocalStorage(tmp_path)
    line = [entry.name for entry in catalogue.list_checkpoints(storage, JOB) if entry.resumable]
    assert line == ["step-4.g2", "step-3.g2", "step-2.g1", "step-1.g1"]


def test_a_damaged_choice_is_reported_by_its_file(tmp_path: Path) -> None:
    live(tmp_path, 1, 2)
    live(tmp_path, 2, 1)
    (tmp_path / JOB / "generations/2.from").write_bytes(b"")
    told: list[dict[str, object]] = []
    with pytest.MonkeyPatch.context() as patch:
        from torchloom.checkpoint import reporting

        patch.setattr(reporting.ports, "checkpoints", lambda text: told.append(json.loads(json.dumps(text))))
        live(tmp_path, 3, 0)
    assert any("generations/2.from" in json.dumps(text.get("rejected", "")) for text in told), told


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_running_generation_writes_its_own_damaged_choice_again(tmp_path: Path, damage: str) -> None:
    live(tmp_path, 1, 2)
    second = live(tmp_path, 2, 1)
    path = tmp_path / JOB / "generations/2.from"
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[damage](whole))
    train(second, 4)
    assert second.failures == 0 and path.read_bytes() == whole


def test_a_choice_that_is_whole_is_never_replaced(tmp_path: Path) -> None:
    from torchloom.errors import CheckpointExists

    storage = LocalStorage(tmp_path)
    begin(storage, JOB, 1)
    settle(storage, JOB, 1, CheckpointName(0, 5))
    with pytest.raises(CheckpointExists):
        settle(storage, JOB, 1, None)
    assert read_generations(storage, JOB).chosen[Branch(1)] == CheckpointName(0, 5)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("record", ["LATEST", "pins/step-2.g1", "checks/step-2.g1"])
def test_hints_pins_and_checks_that_are_damaged_hide_nothing(
    tmp_path: Path, record: str, damage: str
) -> None:
    ckpt = live(tmp_path, 1, 2)
    storage = LocalStorage(tmp_path)
    catalogue.pin(storage, JOB, "step-2.g1")
    assert catalogue.verify_checkpoint(storage, JOB, "step-2.g1", 1.0) == ""
    path = tmp_path / JOB / record
    data = path.read_bytes()
    if "seal" not in data.decode() and damage.startswith("sealed"):
        data = seal({"text": 1})
    path.write_bytes(DAMAGES[damage](data))
    entry = catalogue.list_checkpoints(storage, JOB)[0]
    assert (entry.name, entry.whole, entry.pinned) == ("step-2.g1", True, True)
    assert restored(live(tmp_path, 2, 1)) == "step-2.g1"
    assert ckpt.failures == 0


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_manifest_is_named_and_passed_over(tmp_path: Path, damage: str) -> None:
    live(tmp_path, 1, 2)
    path = tmp_path / JOB / "step-2.g1" / "manifest.json"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    entry = catalogue.list_checkpoints(LocalStorage(tmp_path), JOB)[0]
    assert not entry.whole and "manifest.json" in entry.why
    assert "manifest.json" in catalogue.verify_checkpoint(LocalStorage(tmp_path), JOB, "step-2.g1", 1.0)
    assert restored(live(tmp_path, 2, 1)) == "step-1.g1"


@pytest.mark.parametrize(
    "change",
    [
        {"world": 0},
        {"created_s": 10**400},
        {"created_s": float("nan")},
        {"created_s": None},
        {"step": 3},
        {"files": 7},
        {"files": [{}]},
        {"facts": None},
        {"facts": {"epoch": "x"}},
        {"format": 99},
    ],
    ids=str,
)
def test_a_manifest_whose_fields_make_no_sense_is_damaged(tmp_path: Path, change: dict[str, object]) -> None:
    """Sealed rightly, so only its fields tell."""
    import hashlib

    live(tmp_path, 1, 2)
    path = tmp_path / JOB / "step-2.g1" / "manifest.json"
    body = {**unseal(path.read_bytes(), "it"), **change}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"seal": digest, "body": body}))
    entry = catalogue.list_checkpoints(LocalStorage(tmp_path), JOB)[0]
    assert not entry.whole and "manifest.json" in entry.why
    assert find(LocalStorage(tmp_path), JOB).found is not None


def test_one_file_that_may_not_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    """A manifest whose reading fails: the catalogue says so at that one."""
    live(tmp_path, 1, 2)
    path = tmp_path / JOB / "step-2.g1" / "manifest.json"
    path.unlink()
    path.symlink_to("/proc/self/mem")  # the kernel refuses to read it, also for root
    first, second = catalogue.list_checkpoints(LocalStorage(tmp_path), JOB)
    assert (first.whole, second.whole) == (False, True) and "manifest.json" in first.why
    with pytest.raises(StorageFailed):  # it may be whole, so nothing is removed by such a listing
        catalogue.keep(LocalStorage(tmp_path), JOB, KeepRules(last=1))


@pytest.mark.parametrize("can_move", [True, False])
def test_create_only_holds_on_a_file_system_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_move: bool
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    seen: list[bytes] = []
    monkeypatch.setattr(os, "link", refuse)
    if not can_move:
        monkeypatch.setattr(local, "_move_to_new", lambda temporary, path: None)
    else:  # nobody ever sees the name without its content
        monkeypatch.setattr(local, "_write_in_place", lambda path, data: seen.append(data) or True)
    storage = LocalStorage(tmp_path)
    assert storage.put_new("a/b", b"first") and not storage.put_new("a/b", b"second")
    assert storage.get("a/b") == b"first" and not seen
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


# -- a directory that is deleted -------------------------------------------------------------------


@pytest.mark.parametrize("lives", [1, 2])
@pytest.mark.parametrize("run", ["r", ""])
def test_a_directory_deleted_while_the_job_runs_is_used_again(tmp_path: Path, lives: int, run: str) -> None:
    store = tmp_path / "store"
    for generation in range(1, lives):
        live(store, generation, 2, run)
    ckpt = live(store, lives, 2, run)
    step = 2 * lives
    told: list[dict[str, object]] = []
    with pytest.MonkeyPatch.context() as patch:
        from torchloom.checkpoint import reporting

        patch.setattr(reporting.ports, "checkpoints", lambda text: told.append(json.loads(json.dumps(text))))
        shutil.rmtree(store)
        train(ckpt, step + 1, step + 2)
    assert ckpt.failures == 0, ckpt.why_failed
    assert told[-1]["lost"] == f"step-{step}.g{lives}", "what was there is named"
    assert find(LocalStorage(store), JOB).found is not None
    assert restored(live(store, lives + 1, 1, run)) == f"step-{step + 2}.g{lives}"


def test_a_directory_deleted_before_the_first_save_is_used_all_the_same(tmp_path: Path) -> None:
    store = tmp_path / "store"
    live(store, 1, 2)
    second = live(store, 2, 0)
    shutil.rmtree(store)
    train(second, 3)
    assert second.failures == 0, second.why_failed
    assert restored(live(store, 3, 0)) == "step-3.g2"
