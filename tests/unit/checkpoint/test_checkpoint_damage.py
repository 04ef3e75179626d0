"""A checkpoint damaged on purpose: only the newest, found by its checksums, its size as before."""

from __future__ import annotations

from pathlib import Path

from torchloom.checkpoint.store import catalogue
from torchloom.checkpoint.store.commit import PartWriter, Target, commit
from torchloom.checkpoint.store.damage import damage_newest
from torchloom.checkpoint.store.local import LocalStorage
from torchloom.checkpoint.store.manifest import Facts
from torchloom.checkpoint.store.names import CheckpointName


def save(storage: LocalStorage, step: int) -> None:
    target = Target("job", CheckpointName(0, step), 1, attempt=step)
    writer = PartWriter(storage, target, 0)
    writer.add("model", [f"model {step}".encode()])
    commit(storage, target, [writer.finish()], Facts(), now_s=float(step))


def test_the_newest_is_damaged_and_a_verification_finds_it(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    save(storage, 10)
    save(storage, 20)
    newest, older = catalogue.list_checkpoints(storage, "job")
    key = damage_newest(storage, "job", seed=3)
    assert newest.name in key
    assert catalogue.verify_checkpoint(storage, "job", newest.name, 30.0)
    assert not catalogue.verify_checkpoint(storage, "job", older.name, 30.0)


def test_nothing_to_damage_is_no_error(tmp_path: Path) -> None:
    assert damage_newest(LocalStorage(tmp_path), "job", seed=3) == ""
