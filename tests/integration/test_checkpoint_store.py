"""Checkpoints in real stores: a directory and a real S3 server. Processes, disks and servers really fail."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import disks
import pytest
from checkpoint_process import WORLD, content, save
from s3 import S3Server

import torchloom as loom
from torchloom.checkpoint.saving.writer import Save, Writer
from torchloom.checkpoint.store.catalogue import delete, list_checkpoints, sweep, verify_checkpoint
from torchloom.checkpoint.store.commit import PartWriter, Target, commit
from torchloom.checkpoint.store.generations import begin, claim, settle
from torchloom.checkpoint.store.manifest import Facts, Manifest
from torchloom.checkpoint.store.names import CheckpointName
from torchloom.checkpoint.store.objects import ObjectStorage
from torchloom.checkpoint.store.reader import find
from torchloom.checkpoint.store.storage import Storage, open_storage
from torchloom.checkpoint.store.verify import load
from torchloom.core.retention import KeepRules
from torchloom.errors import CheckpointFenced, CheckpointMissing, StorageFailed, StoreUnreachable

sys.path.append(str(Path(__file__).parents[1] / "states"))
from every_leaf import Holder, differences, everything

SCRIPT = Path(__file__).with_name("checkpoint_process.py")
SOURCE = Path(__file__).parents[2] / "src"
OLD, NEW = CheckpointName(0, 10), CheckpointName(1, 20)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.kill()


@dataclass
class Place:
    """A store, and how another process comes to it."""

    uri: str
    environment: dict[str, str]

    def open(self, **more: str) -> Storage:
        return open_storage(self.uri, {**self.environment, **more})

    def process(self, job: str, generation: int, steps: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, SCRIPT, self.uri, job, str(generation), steps],
            env={**os.environ, "PYTHONPATH": str(SOURCE), **self.environment, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return Place(str(tmp_path / "store"), {})
    server: S3Server = request.getfixturevalue("server")
    return Place(f"{request.node.name.replace('[', '-').rstrip(']')}", server.environment)


def save_one(storage: Storage, job: str, name: CheckpointName) -> None:
    """A generation of its own that resumes and saves once."""
    begin(storage, job, name.generation)
    found = find(storage, job, name.generation).found
    settle(storage, job, name.generation, found.name if found else None)
    save(storage, job, name, 0, str(found.name) if found else "")


def whole(storage: Storage, job: str) -> Manifest:
    """The newest checkpoint, every byte of it compared with what was written."""
    search = find(storage, job)
    assert search.found is not None and not search.rejected
    assert [entry.rank for entry in search.found.files] == list(range(WORLD))
    for entry in search.found.files:
        assert load(storage, search.found, entry) == content(search.found.name, entry.rank)
    return search.found


def told(output: str, what: str) -> list[str]:
    return [line[what] for line in map(json.loads, output.splitlines()) if what in line]


def test_a_store_keeps_what_it_is_given(place: Place) -> None:
    storage = place.open()
    big = random.Random(1).randbytes(40 * 1024 * 1024)
    storage.put("j/a/big", [big[:5], memoryview(big)[5:]])
    storage.put("j/a/small", [b"old"])
    storage.put("j/a/small", [b"", b"new"])
    storage.put("j/empty", [])
    assert storage.put_new("j/new", b"first") and not storage.put_new("j/new", b"second")
    assert (storage.get("j/a/small"), storage.get("j/empty"), storage.get("j/new")) == (b"new", b"", b"first")
    assert [(s.key, s.size) for s in storage.list("j/a/")] == [("j/a/big", len(big)), ("j/a/small", 3)]
    assert storage.list("k/") == []
    assert (storage.size("j/a/big"), storage.size("j/none")) == (len(big), None)
    buffer = memoryview(bytearray(100))
    assert (
        storage.read_scattered("j/a/big", len(big) - 60, [buffer[:25], buffer[25:]]) == 60
        and bytes(buffer[:60]) == big[-60:]
    )
    storage.delete("j/a/small")
    storage.delete("j/a/small")
    for missing in (
        lambda: storage.get("j/a/small"),
        lambda: storage.read_scattered("j/a/small", 0, [buffer]),
    ):
        with pytest.raises(CheckpointMissing):
            missing()
    assert [s.key for s in storage.list("j/")] == ["j/a/big", "j/empty", "j/new"]


def test_every_kind_of_leaf_comes_back_from_it_and_is_saved_again_as_it_was(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    with loom.Checkpoint(part=Holder(everything(1)), dir=place.uri, name="job", every=1000) as ckpt:
        ckpt.save(7, wait=True)
    holder = Holder(everything(2))
    assert loom.Checkpoint(part=holder, dir=place.uri, name="job", every=1000).restore() == 7
    assert differences(everything(1), holder.state) == []
    with loom.Checkpoint(part=holder, dir=place.uri, name="again", every=1000) as ckpt:
        ckpt.save(7, wait=True)
    found = [find(place.open(), name).found for name in ("job", "again")]
    sums = [[(entry.size, entry.checksum) for entry in one.files] for one in found if one is not None]
    assert len(sums) == 2 and sums[0] == sums[1]


def test_of_many_that_create_one_wins(place: Place) -> None:
    storages = [place.open() for _ in range(6)]
    winners: list[tuple[str, int]] = []

    def create(number: int) -> None:
        for turn in range(15):
            if storages[number].put_new(f"j/{turn}", str(number).encode()):
                winners.append((f"j/{turn}", number))

    threads = [threading.Thread(target=create, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(key for key, _ in winners) == sorted(f"j/{turn}" for turn in range(15))
    assert all(storages[0].get(key) == str(number).encode() for key, number in winners)
    if isinstance(storages[0], ObjectStorage):
        assert storages[0].conditional, "this server is known to honour If-None-Match"
    claimed = {claim(storage, "k", str(number)) for number, storage in enumerate(storages)}
    assert claimed == set(range(6))


def test_without_conditional_puts_an_object_that_is_there_is_still_not_replaced(server: S3Server) -> None:
    storage = open_storage("plain", server.environment)
    assert isinstance(storage, ObjectStorage)
    storage.conditional = False
    assert storage.put_new("j/x", b"first") and not storage.put_new("j/x", b"second")
    assert storage.put_new("j/x", b"first"), "our own, repeated after a lost answer"
    assert storage.get("j/x") == b"first"


def test_a_kill_at_every_point_leaves_the_old_or_the_new_checkpoint(place: Place) -> None:
    storage = place.open()
    save_one(storage, "count", OLD)
    output, _ = place.process("count", 1, "20", TELL_POINTS="1").communicate()
    passed = told(output, "point")
    assert {"fence.registered", "choice.recorded", "commit.file", "commit.part", "commit.gathered"} < set(
        passed
    )
    assert {"commit.allowed", "commit.checked", "commit.done", "commit.hinted"} < set(passed)
    seen: set[CheckpointName] = set()
    for number, point in enumerate(passed, 1):
        job = f"kill-{number}"
        save_one(storage, job, OLD)
        process = place.process(job, 1, "20", LOOM_KILL_AT=f"*:{number}")
        output, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, f"{point}: {errors}"
        found = whole(storage, job).name
        seen.add(found)
        # From the put of the manifest on it is the new one; what comes after cannot undo it.
        if point in ("commit.done", "commit.hinted"):
            assert found == NEW
        elif point.startswith(("commit.", "fence.", "choice.")):
            assert found == OLD
        save_one(storage, job, CheckpointName(2, 30))
        assert whole(storage, job).name == CheckpointName(2, 30)
        sweep(storage, job, now_s=1e12, grace_s=0.0)
        entries = list_checkpoints(storage, job)
        assert all(entry.whole for entry in entries) and whole(storage, job).name == CheckpointName(2, 30)
        left = {stored.key.rpartition("/")[2] for stored in storage.list(f"{job}/")}
        assert not [key for key in left if key.startswith((".tmp-", "part-", "probe-"))]
    assert seen == {OLD, NEW}


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_at_any_moment_loses_no_save_that_was_told(place: Place, seed: int) -> None:
    storage = place.open()
    process = place.process("moment", 0, ",".join(str(step) for step in range(10, 5000, 10)))
    assert process.stdout is not None
    after = random.Random(seed).randint(2, 5)
    lines = [process.stdout.readline() for _ in range(after)]
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate()
    saved = told("".join(lines) + rest, "saved")
    last = int(saved[-1].removeprefix("step-").removesuffix(".g0")) if saved else 0
    assert whole(storage, "moment").step in (last, last + 10)


@pytest.mark.parametrize("point", ["commit.checked", "put.durable"])
def test_a_writer_frozen_before_its_commit_never_wins(place: Place, point: str) -> None:
    storage = place.open()
    save_one(storage, "job", OLD)
    frozen = place.process("job", 1, "20", STOP_AT=point)
    os.waitid(os.P_PID, frozen.pid, os.WSTOPPED | os.WNOWAIT)
    begin(storage, "job", 2)
    found = find(storage, "job", 2).found
    assert found is not None and found.name == OLD
    settle(storage, "job", 2, found.name)
    while frozen.poll() is None:  # it stops at that point each time it passes
        frozen.send_signal(signal.SIGCONT)
        time.sleep(0.01)
    _, errors = frozen.communicate()
    if point == "commit.checked":  # past its last look: it commits, and nobody ever resumes from it
        assert frozen.returncode == 0
        late = next(entry for entry in list_checkpoints(storage, "job") if entry.name == str(NEW))
        assert late.whole and not late.resumable and not late.newest
    else:
        assert CheckpointFenced.__name__ in errors and "generation 2 has begun" in errors
    assert whole(storage, "job").name == OLD
    save(storage, "job", CheckpointName(2, 15), 0, str(OLD))
    assert whole(storage, "job").name == CheckpointName(2, 15)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 6 MiB: room for a few checkpoints of 2 MB."""
    with disks.small_disk(tmp_path / "disk", megabytes=6) as disk:
        yield disk


def test_a_full_disk_is_one_clear_sentence_and_takes_nothing_old(small_disk: Path) -> None:
    storage = open_storage(str(small_disk / "store"), {})
    save_one(storage, "job", OLD)
    big = PartWriter(storage, Target("job", CheckpointName(0, 20), 1, 1), 0)
    with pytest.raises(StorageFailed, match="the disk is full: free space"):
        big.add("state", [bytes(8 * 1024 * 1024)])
    assert not list(small_disk.rglob(".tmp-*")), "the half file still takes the room"
    assert whole(storage, "job").name == OLD
    save(storage, "job", CheckpointName(0, 30), 2, str(OLD))
    assert whole(storage, "job").name == CheckpointName(0, 30)
    assert verify_checkpoint(storage, "job", str(OLD), 1.0) == ""


def test_two_ranks_that_make_room_at_the_same_time_do_not_fail_each_other(small_disk: Path) -> None:
    """Both find the disk full and delete the same old checkpoint; neither save fails for it."""
    given_up: set[int] = set()
    writers = [Writer(open_storage(str(small_disk), {}), given_up.__contains__) for _ in range(2)]
    halves = {name: memoryview(bytes(525_000)) for name in ("a", "b")}
    for step in range(1, 101):
        target = Target("job", CheckpointName(1, step), len(writers), step)
        for rank, writer in enumerate(writers):
            writer.start(Save(target, rank, halves, Facts(), KeepRules(last=2), commits=rank == 0))
        for writer in reversed(writers):
            assert writer.wait(60), "it ends"
            outcome = writer.collect()
            assert outcome is not None
            if outcome.problem:
                given_up.add(step)
            assert not outcome.problem, f"step {step}"
    kept = [entry.step for entry in list_checkpoints(open_storage(str(small_disk), {}), "job")]
    assert kept == [100, 99] or kept == [100]


def test_a_read_only_store_can_be_read_and_says_why_it_cannot_be_written(small_disk: Path) -> None:
    storage = open_storage(str(small_disk / "store"), {})
    save_one(storage, "job", OLD)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StorageFailed, match="the file system is read-only"):
        save(storage, "job", CheckpointName(0, 20), 1, str(OLD))
    with pytest.raises(StorageFailed, match="the file system is read-only"):
        begin(storage, "job", 1)
    assert whole(storage, "job").name == OLD
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    save(storage, "job", CheckpointName(0, 20), 2, str(OLD))
    assert whole(storage, "job").name == CheckpointName(0, 20)


def test_a_server_killed_in_the_middle_of_a_save_loses_nothing(server: S3Server) -> None:
    place = Place("outage", server.environment)
    storage, hasty = place.open(), place.open(LOOM_STORE_TIMEOUT="1")
    save_one(storage, "job", OLD)
    target = Target("job", CheckpointName(0, 20), 1, 1)
    writer = PartWriter(storage, target, 0)
    writer.add("first", [b"1"])
    server.kill()
    writer._storage = hasty  # only where it is meant to give up: a busy server may need its time
    with pytest.raises(StorageFailed, match=r"could not write s3://loom/outage/job/step-20\.g0/.* within"):
        writer.add("second", [b"2"])
    writer._storage = storage
    with pytest.raises(StorageFailed):
        find(hasty, "job")
    server.start()
    assert whole(storage, "job").name == OLD
    writer.add("second", [b"2"])
    commit(storage, target, [writer.finish()], Facts(parent=str(OLD)), now_s=1.0)
    found = find(storage, "job").found
    assert found is not None and found.step == 20
    assert [bytes(load(storage, found, entry)) for entry in found.files] == [b"1", b"2"]


def test_a_store_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        env = {"S3_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}", "LOOM_STORE_TIMEOUT": "0.5"}
        storage = open_storage("s3://b/p", {**env, "S3_ACCESS_KEY": "key", "S3_SECRET_KEY": "hush"})
        with pytest.raises(StorageFailed, match="check S3_ENDPOINT"):
            storage.put("job/x", [b"1"])


def test_wrong_credentials_are_named_but_not_shown(server: S3Server) -> None:
    storage = open_storage("wrong", {**server.environment, "S3_SECRET_KEY": "hush-hush"})
    with pytest.raises(StorageFailed, match="refused our credentials") as caught:
        storage.put("job/x", [b"1"])
    assert "hush" not in str(caught.value) and "loom-test-key" not in str(caught.value)


def test_a_missing_bucket_is_named_and_not_called_unreachable(server: S3Server) -> None:
    storage = open_storage("s3://nowhere/runs", server.environment)
    with pytest.raises(StorageFailed, match="the store has no bucket nowhere") as caught:
        list(storage.list("job/"))
    assert not isinstance(caught.value, StoreUnreachable), "waiting does not create it"
    assert "create the bucket" in str(caught.value)


def test_deleting_is_all_or_nothing_to_a_reader(place: Place) -> None:
    storage = place.open()
    save_one(storage, "job", OLD)
    save_one(storage, "job", NEW)
    delete(storage, "job", str(OLD))
    assert [entry.name for entry in list_checkpoints(storage, "job")] == [str(NEW)]
    assert not storage.list(f"job/{OLD}/")
