"""How a catalogue is shown, and what of a command line is refused before anybody is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchloom.agent.checkpoints.catalogue import answer
from torchloom.api.routes.checkpoints import _view
from torchloom.checkpoint.store.commit import PartWriter, Target, commit
from torchloom.checkpoint.store.local import LocalStorage
from torchloom.checkpoint.store.manifest import Facts
from torchloom.checkpoint.store.names import CheckpointName
from torchloom.cli.declared import EndVerb
from torchloom.cli.steer import checkpoints
from torchloom.errors import UsageError
from torchloom.model.checkpoints import CheckpointPlace
from torchloom.model.messages import AskCheckpoints, CheckpointVerb


def entry(**more: Any) -> Any:
    made = {
        "name": "step-10.g1",
        "step": 10,
        "generation": 1,
        "where": "/data/j/step-10.g1",
        "whole": True,
        "why": "",
        "verified_ns": 0,
        "pinned": False,
        "resumable": True,
        "newest": False,
        "created_ns": 1,
        "size": 4_200_000,
        "world": 2,
        "epoch": 0,
        "config_version": 3,
        "parent": "step-5.g1",
        "finite": True,
        "metrics": {},
        "lineage": {},
    }
    return {**made, **more}


def catalogue(*entries: Any, **more: Any) -> Any:
    made = {
        "job": "j",
        "store": "/data",
        "name": "j",
        "node": "here",
        "restored": "",
        "restored_from": "",
        "restored_generation": 0,
        "interval": 5,
        "memory_interval": 0,
        "failing": "",
        "left_out": 0,
        "checkpoints": list(entries),
    }
    return {**made, **more}


@pytest.mark.parametrize(
    ("about", "told"),
    [
        ({}, "whole"),
        ({"newest": True, "pinned": True}, "newest, pinned"),
        ({"newest": True, "finite": False}, "newest, contains NaN or infinite values"),
        ({"resumable": False}, "on an abandoned branch"),
        ({"whole": False, "why": "a file is gone", "pinned": True}, "damaged: a file is gone"),
    ],
)
def test_the_state_of_one(about: dict[str, Any], told: str) -> None:
    assert checkpoints.state(entry(**about)) == told


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (4_200_000, "4.2 MB"), (42e9, "42 GB"), (3e12, "3.0 TB")],
)
def test_sizes_as_people_say_them(count: int, told: str) -> None:
    assert checkpoints.size(int(count)) == told


def test_a_catalogue_is_a_table_with_a_line_above_it(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints.show(catalogue(entry(), failing="j.2", restored="step-5.g1", memory_interval=1, left_out=3))
    shown = capsys.readouterr().out
    assert shown.startswith("in /data on here · every 5 steps · in memory every 1 · resumed from step-5.g1")
    assert "loom incident j.2" in shown and "step-10.g1" in shown and "4.2 MB" in shown
    assert "and 3 older ones" in shown


def test_nothing_saved_is_said_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints.show(catalogue(store="", node=""))
    assert "loom.Checkpoint" in capsys.readouterr().out
    checkpoints.show(catalogue())
    assert "no checkpoints" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        {"name": "step-1.g1"},
        {"verify": True, "pin": "step-1.g1"},
        {"pin": "a", "delete": "b"},
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        checkpoints.command("j", **options)


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="use a name from"):
        checkpoints._checked("../../etc")


class Stored:
    """Answers as the API does, by the agent's own answers about a real directory."""

    timeout_s = 0.0

    def __init__(self, place: Path) -> None:
        self.place = place

    def _ask(self, verb: CheckpointVerb, which: str = "") -> list[Any]:
        ask = AskCheckpoints(job="j", place=CheckpointPlace(str(self.place), "j"), verb=verb, which=which)
        found = answer(ask, 1.0)
        assert not found.problem, found.why
        return [_view(entry, entry.config_version).model_dump() for entry in found.entries]

    def checkpoints(self, job: str) -> Any:
        return catalogue(*self._ask("list"))

    def verify_checkpoint(self, job: str, name: str) -> Any:
        return self._ask("verify", name)[0]


def _save(place: Path, *steps: int) -> None:
    storage = LocalStorage(place)
    for step in steps:
        target = Target("j", CheckpointName(1, step), 1, attempt=step)
        writer = PartWriter(storage, target, 0)
        writer.add("own", [bytes(range(200))])
        commit(storage, target, [writer.finish()], Facts(), 1.0)


def _truncate(shard: Path, manifest: Path) -> str:
    shard.write_bytes(shard.read_bytes()[:-1])
    return shard.name


def _rename(shard: Path, manifest: Path) -> str:
    shard.rename(shard.with_name("elsewhere"))
    return shard.name


def _remove(shard: Path, manifest: Path) -> str:
    shard.unlink()
    return shard.name


def _flip(shard: Path, manifest: Path) -> str:
    data = bytearray(shard.read_bytes())
    data[7] ^= 1
    shard.write_bytes(data)
    return shard.name


def _garbage(shard: Path, manifest: Path) -> str:
    manifest.write_bytes(b"\x00garbage")
    return manifest.name


def _cut(shard: Path, manifest: Path) -> str:
    manifest.write_bytes(manifest.read_bytes()[:40])
    return manifest.name


def _wrong_types(shard: Path, manifest: Path) -> str:
    from torchloom.checkpoint.store.manifest import seal, unseal

    manifest.write_bytes(seal({**unseal(manifest.read_bytes(), "it"), "files": "none"}))
    return manifest.name


@pytest.mark.parametrize("one", [True, False])
@pytest.mark.parametrize("damage", [_truncate, _rename, _remove, _flip, _garbage, _cut, _wrong_types])
def test_verify_fails_and_names_the_file_whatever_is_damaged(
    tmp_path: Path, damage: Any, one: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    _save(tmp_path, 1, 2)
    folder = tmp_path / "j/step-2.g1"
    file = damage(next(folder.glob("r0.*")), folder / "manifest.json")
    for as_json in (False, True):
        with pytest.raises(EndVerb) as ended:
            checkpoints._verify(Stored(tmp_path), "j", "step-2.g1" if one else None, as_json)  # type: ignore[arg-type]
        assert ended.value.exit_code == 1
        shown = capsys.readouterr().out
        if as_json:
            told = [json.loads(line) for line in shown.splitlines()]
            assert [line["name"] for line in told if not line["whole"]] == ["step-2.g1"]
            assert file in told[0]["why"]
        else:
            assert file in next(
                line for line in shown.splitlines() if line.startswith("step-2.g1 is damaged")
            )
        assert one or "step-1.g1" in shown, "the others are looked at, too"


def test_verify_of_whole_checkpoints_ends_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _save(tmp_path, 1, 2)
    checkpoints._verify(Stored(tmp_path), "j", None, False)  # type: ignore[arg-type]
    assert capsys.readouterr().out.count("is intact") == 2


def test_damage_on_a_store_that_can_only_be_read_is_found_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _save(tmp_path, 1)
    folder = tmp_path / "j/step-1.g1"
    file = _flip(next(folder.glob("r0.*")), folder)
    (tmp_path / "j/checks").touch()  # no note can be made below a file
    with pytest.raises(EndVerb):
        checkpoints._verify(Stored(tmp_path), "j", None, False)  # type: ignore[arg-type]
    assert file in capsys.readouterr().out
