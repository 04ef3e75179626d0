"""Search, catalogue, keep rules and sweep on a directory; each damage a store can have."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from torchloom.checkpoint.store import catalogue, points
from torchloom.checkpoint.store.commit import Committed, PartWriter, Target, commit, gather
from torchloom.checkpoint.store.generations import begin, settle
from torchloom.checkpoint.store.local import LocalStorage
from torchloom.checkpoint.store.manifest import Facts
from torchloom.checkpoint.store.names import CheckpointName
from torchloom.checkpoint.store.reader import find
from torchloom.checkpoint.store.verify import load
from torchloom.core.retention import KeepRules
from torchloom.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointExists,
    CheckpointFenced,
    CheckpointInUse,
    CheckpointMissing,
    UsageError,
)

JOB = "job"


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "store")


def save(storage: LocalStorage, step: int, generation: int = 0, **facts: object) -> Committed:
    target = Target(JOB, CheckpointName(generation, step), 1, attempt=step)
    writer = PartWriter(storage, target, 0)
    writer.add("model", [f"model {step}".encode()])
    writer.add("rng", [b"rng"])
    return commit(storage, target, [writer.finish()], Facts(**facts), now_s=float(step))  # type: ignore[arg-type]


def newest(storage: LocalStorage) -> str | None:
    found = find(storage, JOB).found
    return str(found.name) if found else None


def file_of(storage: LocalStorage, name: str, kind: str) -> Path:
    return next((Path(storage.where) / JOB / name).glob(f"*{kind}"))


def test_what_is_saved_is_found_with_all_that_is_known(storage: LocalStorage) -> None:
    save(storage, 10, epoch=1, config_version=4, cursor=[1, 2], metrics={"loss": 0.25}, lineage={"run": "a"})
    committed = save(storage, 20, parent="step-10.g0")
    assert committed.warning == ""
    first, second = reversed(catalogue.list_checkpoints(storage, JOB))
    assert (first.step, first.epoch, first.config_version, first.world, first.size) == (10, 1, 4, 1, 11)
    assert (first.metrics, first.lineage, first.created_s) == ({"loss": 0.25}, {"run": "a"}, 10.0)
    assert first.where == f"{storage.where}/{JOB}/step-10.g0"
    assert (second.parent, second.newest, first.newest, second.verified_s) == (
        "step-10.g0",
        True,
        False,
        None,
    )
    assert storage.get(f"{JOB}/LATEST") == b"step-20.g0\n"
    found = find(storage, JOB, step=10).found
    assert found is not None and [bytes(load(storage, found, entry)) for entry in found.files] == [
        b"model 10",
        b"rng",
    ]


def cut(path: Path) -> None:
    os.truncate(path, 3)


def change(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [Path.unlink, cut])
@pytest.mark.parametrize("kind", ["model", "manifest.json"])
def test_a_damaged_one_is_passed_over_with_the_reason(
    storage: LocalStorage, damage: Callable[[Path], None], kind: str
) -> None:
    save(storage, 10)
    save(storage, 20, parent="step-10.g0")
    damage(file_of(storage, "step-20.g0", kind))
    search = find(storage, JOB)
    assert search.found is not None and search.found.step == 10
    if (damage, kind) == (Path.unlink, "manifest.json"):
        assert not search.rejected, "without a manifest it does not exist"
    else:
        assert [rejected.name for rejected in search.rejected] == ["step-20.g0"]
        assert any(word in search.rejected[0].why for word in ("lacks", "bytes instead of", "damaged"))


def test_a_changed_byte_is_found_before_anything_is_used_and_not_chosen_again(storage: LocalStorage) -> None:
    save(storage, 10)
    save(storage, 20)
    change(file_of(storage, "step-20.g0", "model"))
    found = find(storage, JOB).found
    assert found is not None and found.step == 20
    with pytest.raises(CheckpointDamaged, match="was changed"):
        load(storage, found, found.files[0])
    skipped = find(storage, JOB, skip=["step-20.g0"]).found
    assert skipped is not None and skipped.step == 10
    assert "was changed" in catalogue.verify_checkpoint(storage, JOB, "step-20.g0", 5.0)
    assert newest(storage) == "step-10.g0"
    assert "found damaged before" in find(storage, JOB).rejected[0].why
    assert catalogue.verify_checkpoint(storage, JOB, "step-10.g0", 6.0) == ""
    bad, good = catalogue.list_checkpoints(storage, JOB)
    assert (bad.whole, bad.verified_s, good.whole, good.verified_s) == (False, None, True, 6.0)


def test_latest_is_never_trusted(storage: LocalStorage) -> None:
    save(storage, 10)
    storage.put(f"{JOB}/LATEST", [b"step-99.g7\n"])
    assert newest(storage) == "step-10.g0"
    storage.delete(f"{JOB}/LATEST")
    assert newest(storage) == "step-10.g0"


def test_ranks_that_have_not_finished_are_named_and_attempts_are_not_mixed(storage: LocalStorage) -> None:
    first = Target(JOB, CheckpointName(0, 10), 3, attempt=0)
    for rank in (0, 2):
        writer = PartWriter(storage, first, rank)
        writer.add("model", [b"x"])
        writer.finish()
    with pytest.raises(CheckpointError, match="no part of rank 1"):
        gather(storage, first)
    with pytest.raises(CheckpointError, match="no part of rank 0, 1, 2"):
        gather(storage, Target(JOB, CheckpointName(0, 10), 3, attempt=1))
    assert newest(storage) is None


def test_parts_of_an_earlier_series_of_saves_are_not_taken_for_those_of_this_one(
    storage: LocalStorage,
) -> None:
    """One process may save a step with two Checkpoints, and each counts its attempts from 1."""
    first, second = (Target(JOB, CheckpointName(0, 10), 2, 1, series=series) for series in ("a", "b"))
    for target, rank in ((first, 1), (second, 0)):
        writer = PartWriter(storage, target, rank)
        writer.add("model", [b"x"])
        writer.finish()
    with pytest.raises(CheckpointError, match="no part of rank 1"):
        gather(storage, second)
    PartWriter(storage, second, 1).finish()
    assert [part.series for part in gather(storage, second)] == ["b", "b"]


def test_a_step_is_committed_once_and_repeating_the_same_is_no_error(storage: LocalStorage) -> None:
    target = Target(JOB, CheckpointName(0, 10), 1, 0)
    writer = PartWriter(storage, target, 0)
    writer.add("model", [b"x"])
    with pytest.raises(UsageError, match="twice"):
        writer.add("model", [b"y"])
    part = writer.finish()
    first = commit(storage, target, [part], Facts(), now_s=1.0)
    assert commit(storage, target, [part], Facts(), now_s=2.0).manifest == first.manifest
    with pytest.raises(CheckpointExists):
        save(storage, 10)


def test_an_abandoned_save_leaves_nothing(storage: LocalStorage) -> None:
    writer = PartWriter(storage, Target(JOB, CheckpointName(0, 10), 2, 0), 1)
    writer.add("model", [b"x"])
    writer.finish()
    writer.abandon()
    assert not storage.list(f"{JOB}/")


def test_an_older_generation_is_refused_and_a_choice_is_made_once(storage: LocalStorage) -> None:
    save(storage, 10)
    begin(storage, JOB, 1)
    begin(storage, JOB, 1)
    with pytest.raises(CheckpointFenced, match="generation 1 has begun"):
        save(storage, 20)
    settle(storage, JOB, 1, CheckpointName(0, 10))
    settle(storage, JOB, 1, CheckpointName(0, 10))
    with pytest.raises(CheckpointExists, match=r"already resumed from step-10\.g0"):
        settle(storage, JOB, 1, None)
    with pytest.raises(CheckpointFenced):
        begin(storage, JOB, 0)


def test_what_must_not_be_deleted_is_not(storage: LocalStorage) -> None:
    for step in (10, 20, 30):
        save(storage, step)
    catalogue.pin(storage, JOB, "step-10.g0")
    with pytest.raises(CheckpointInUse, match="pinned"):
        catalogue.delete(storage, JOB, "step-10.g0")
    with pytest.raises(CheckpointInUse, match="would resume from"):
        catalogue.delete(storage, JOB, "step-30.g0")
    for missing in ("step-11.g0", "../../etc", "step-10"):
        with pytest.raises(CheckpointMissing):
            catalogue.delete(storage, JOB, missing)
    catalogue.unpin(storage, JOB, "step-10.g0")
    catalogue.delete(storage, JOB, "step-10.g0")
    assert [entry.step for entry in catalogue.list_checkpoints(storage, JOB)] == [30, 20]


class Died(BaseException):
    """Stands for a kill that the test survives."""


def test_a_half_deleted_one_does_not_exist_and_is_swept(storage: LocalStorage) -> None:
    for step in (10, 20):
        save(storage, step)

    def die(name: str) -> None:
        if name == "delete.manifest":
            raise Died

    points.set_hook(die)
    try:
        with pytest.raises(Died):
            catalogue.delete(storage, JOB, "step-10.g0")
    finally:
        points.set_hook(None)
    assert [entry.step for entry in catalogue.list_checkpoints(storage, JOB)] == [20]
    assert catalogue.sweep(storage, JOB, now_s=0.0) == [], "too young"
    assert len(catalogue.sweep(storage, JOB, now_s=1e12)) == 2
    assert not storage.list(f"{JOB}/step-10.g0/") and newest(storage) == "step-20.g0"


@pytest.mark.parametrize("harm", ["cut short", "gone"])
def test_a_file_that_is_not_there_whole_is_never_committed(storage: LocalStorage, harm: str) -> None:
    """A disk may have lost what it said was written; the listing before the commit shows it."""
    save(storage, 10)
    target = Target(JOB, CheckpointName(0, 20), 1, 20)
    writer = PartWriter(storage, target, 0)
    writer.add("model", [b"x" * 1000])
    part = writer.finish()
    (file,) = (Path(storage.where) / JOB / "step-20.g0").glob("r0.*")
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(b"x" * 999)
    with pytest.raises(CheckpointDamaged):
        commit(storage, target, [part], Facts(), now_s=1.0)
    assert not (Path(storage.where) / JOB / "step-20.g0" / "manifest.json").exists()
    assert newest(storage) == "step-10.g0"


def test_keep_rules_leave_damaged_ones_until_enough_whole_ones_are_newer(storage: LocalStorage) -> None:
    for step in (10, 20):
        save(storage, step)
    catalogue.mark_damaged(storage, JOB, "step-10.g0", "a byte was changed", 1.0)
    catalogue.keep(storage, JOB, KeepRules(last=2))
    assert [entry.step for entry in catalogue.list_checkpoints(storage, JOB)] == [20, 10]
    save(storage, 30)
    catalogue.keep(storage, JOB, KeepRules(last=2))
    assert [entry.step for entry in catalogue.list_checkpoints(storage, JOB)] == [30, 20]


def test_a_save_in_flight_is_not_swept(storage: LocalStorage) -> None:
    save(storage, 10)
    target = Target(JOB, CheckpointName(0, 20), 1, 20)
    writer = PartWriter(storage, target, 0)
    writer.add("model", [b"x"])
    assert catalogue.sweep(storage, JOB, now_s=1e12) == []
    commit(storage, target, [writer.finish()], Facts(), now_s=1.0)
    assert newest(storage) == "step-20.g0"


def test_keep_rules_delete_what_no_rule_wants_and_never_what_is_resumed_from(storage: LocalStorage) -> None:
    for step in (10, 20, 30, 40):
        save(storage, step)
    begin(storage, JOB, 1)
    settle(storage, JOB, 1, CheckpointName(0, 20))
    save(storage, 25, generation=1, parent="step-20.g0")
    refused = catalogue.keep(storage, JOB, KeepRules(last=1), approve=lambda verdicts: False)
    assert [verdict.name for verdict in refused if not verdict.keep] == [
        "step-40.g0",
        "step-30.g0",
        "step-10.g0",
    ]
    assert len(catalogue.list_checkpoints(storage, JOB)) == 5
    catalogue.keep(storage, JOB, KeepRules(last=1), in_use=["step-10.g0"])
    assert [entry.name for entry in catalogue.list_checkpoints(storage, JOB)] == [
        "step-25.g1",
        "step-20.g0",
        "step-10.g0",
    ]
    catalogue.purge(storage, JOB)
    assert not (Path(storage.where) / JOB).exists()


def test_an_operator_may_choose_a_branch_that_was_left(storage: LocalStorage) -> None:
    for step in (10, 20):
        save(storage, step)
    begin(storage, JOB, 1)
    settle(storage, JOB, 1, CheckpointName(0, 10))
    assert newest(storage) == "step-10.g0"
    wanted = find(storage, JOB, generation=2, step=20).found
    assert wanted is not None and wanted.name == CheckpointName(0, 20)
    begin(storage, JOB, 2)
    settle(storage, JOB, 2, wanted.name)
    assert newest(storage) == "step-20.g0"
    assert find(storage, JOB, step=11).found is None
