"""Names, manifests and lines of descent: what is built is read back, what is wrong is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from torchloom.checkpoint.store import names
from torchloom.checkpoint.store.generations import Generations, line_of_descent
from torchloom.checkpoint.store.manifest import (
    Facts,
    FileEntry,
    Manifest,
    RankPart,
    decode_manifest,
    decode_part,
    encode_manifest,
    encode_part,
    seal,
    unseal,
)
from torchloom.checkpoint.store.names import Branch, CheckpointName, parse_name
from torchloom.checkpoint.store.storage import check_key, open_storage
from torchloom.errors import CheckpointDamaged, UsageError

ENTRY = FileEntry("model", 0, "r0.1.abc.model", 3, "crc32:00000000")
FACTS = Facts(
    epoch=2, config_version=5, cursor={"shard": 3}, rng="rng", parent="step-1.g0", metrics={"loss": 0.5}
)
MANIFEST = Manifest("job", 10, 2, 1, 12.5, FACTS, (ENTRY,))


def name(text: str) -> CheckpointName:
    parsed = parse_name(text)
    assert parsed is not None
    return parsed


def line(committed: str, chosen: dict[int, str | None], below: int | None = None) -> list[str]:
    choices = {Branch(g): None if text is None else name(text) for g, text in chosen.items()}
    generations = Generations(frozenset(choices), choices)
    return [str(n) for n in line_of_descent(map(name, committed.split()), generations, below)]


def test_names_are_read_back_and_nothing_else_is_a_name() -> None:
    assert str(name("step-120.g3")) == "step-120.g3"
    for wrong in (
        "step-1",
        "step--1.g0",
        "step-01.g0",
        "step-1.g0/",
        "step-1.g0 ",
        "x/step-1.g0",
        "step-١.g0",
    ):
        assert parse_name(wrong) is None


@pytest.mark.parametrize("wrong", ["", "a/b", "..", ".hidden", "a b", "a\n", "x" * 200])
def test_a_job_that_could_lead_elsewhere_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError):
        names.check_job(wrong)


@pytest.mark.parametrize("wrong", ["", "/etc/passwd", "a/../b", "a//b", "a/", "./a", "a\0", "a\\b"])
def test_a_key_that_could_lead_elsewhere_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError):
        check_key(wrong)


def test_a_manifest_is_read_back() -> None:
    assert decode_manifest(encode_manifest(MANIFEST), "job", MANIFEST.name) == MANIFEST
    part = RankPart(MANIFEST.name, 4, 0, (ENTRY,))
    assert decode_part(encode_part(part), "part") == part


def test_a_metric_that_is_no_number_does_not_stop_a_save() -> None:
    manifest = replace(MANIFEST, facts=replace(FACTS, metrics={"loss": float("nan")}))
    loss = decode_manifest(encode_manifest(manifest), "job", MANIFEST.name).facts.metrics["loss"]
    assert loss != loss


def test_no_cut_and_no_changed_byte_of_a_manifest_goes_unseen() -> None:
    data = encode_manifest(MANIFEST)
    for end in range(len(data) - 1):
        with pytest.raises(CheckpointDamaged):
            decode_manifest(data[:end], "job", MANIFEST.name)
    for place in range(len(data) - 1):
        changed = bytearray(data)
        changed[place] ^= 1
        try:
            found = decode_manifest(bytes(changed), "job", MANIFEST.name)
        except CheckpointDamaged:
            continue
        assert found == MANIFEST, "a change of white space is the only one allowed"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("files", [{"name": "m", "rank": 0, "stored": "../../m", "size": 1, "checksum": ""}]),
        ("files", [{"name": "m", "rank": 0, "stored": "m", "size": -1, "checksum": ""}]),
        ("files", [{"name": "m", "rank": 0, "stored": s, "size": 1, "checksum": ""} for s in "ab"]),
        ("step", "10"),
        ("step", 11),
        ("job", "other"),
        ("facts", []),
        ("format", 99),
    ],
)
def test_a_hostile_manifest_is_refused(field: str, value: object) -> None:
    body = unseal(encode_manifest(MANIFEST), "it")
    with pytest.raises(CheckpointDamaged):
        decode_manifest(seal({**body, field: value}), "job", MANIFEST.name)


def test_the_newest_step_of_the_newest_generation_comes_first() -> None:
    chosen = {0: None, 1: "step-20.g0"}
    assert line("step-10.g0 step-20.g0 step-30.g1 step-25.g1", chosen) == [
        "step-30.g1",
        "step-25.g1",
        "step-20.g0",
        "step-10.g0",
    ]


def test_a_late_commit_of_an_old_generation_is_on_no_line() -> None:
    committed = "step-10.g0 step-20.g0 step-90.g0 step-15.g1"
    assert line(committed, {0: None, 1: "step-10.g0"}) == ["step-15.g1", "step-10.g0"]
    assert line(committed, {0: None, 1: "step-10.g0", 2: "step-15.g1"}, below=3) == [
        "step-15.g1",
        "step-10.g0",
    ]


def test_a_rollback_stays_in_force_though_its_generation_saved_nothing() -> None:
    assert line("step-10.g0 step-20.g0", {0: None, 1: "step-10.g0"}, below=2) == ["step-10.g0"]


def test_a_generation_that_chose_nothing_is_passed_over_and_one_from_scratch_is_the_end() -> None:
    assert line("step-10.g0", {0: None}, below=9) == ["step-10.g0"]
    assert line("step-10.g0 step-5.g1", {0: None, 1: None}) == ["step-5.g1"]
    assert line("step-10.g0", {0: None, 1: None}) == []
    assert line("", {}) == []


def test_a_choice_that_cannot_be_does_not_loop() -> None:
    assert line("step-1.g1", {1: "step-1.g1"}) == ["step-1.g1"]


def test_the_environment_moves_a_directory_to_s3_and_hides_its_keys() -> None:
    env = {
        "USE_S3": "true",
        "S3_BUCKET": "b",
        "S3_ENDPOINT": "http://127.0.0.1:1",
        "S3_SECRET_KEY": "hush",
        "S3_ACCESS_KEY": "who",
    }
    storage = open_storage("./runs/ckpt", env)
    assert storage.where == "s3://b/runs/ckpt"
    assert "hush" not in json.dumps([repr(storage), str(vars(storage))])
    assert open_storage("x", {"USE_S3": "false"}).where.endswith("/x")
    for uri, wrong in (("x", {"USE_S3": "1"}), ("ftp://x", {}), ("", {}), ("s3://", {})):
        with pytest.raises(UsageError):
            open_storage(uri, wrong)
