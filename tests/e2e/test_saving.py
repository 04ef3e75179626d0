"""Checkpoints as people meet them: real DDP workers, kills, damage, full disks, going back."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import disks
import pytest
from stack import Stack, lines_of, wait_until

from torchloom.checkpoint.store.local import LocalStorage
from torchloom.checkpoint.store.runs import begin_run, number_in_store


class Saver:
    """One job of scripts/saves.py."""

    def __init__(self, stack: Stack, root: Path, store: Path, *args: str) -> None:
        self.stack, self.store, self.notes = stack, store, root / "notes"
        # A rank that a test stops stays so.
        (root / "policy.toml").write_text('[rules.hang]\ncertain = "report"\n')
        flags = ("--policy", str(root / "policy.toml"))
        self.job = stack.submit("saves.py", str(self.notes), str(store), *args, flags=flags)

    def lines(self) -> list[tuple[int, int, int]]:
        """(generation, rank, step) in the order they were made."""
        fields = [line.split() for line in lines_of(self.notes)]
        return [(int(f[0]), int(f[1]), int(f[2])) for f in fields if len(f) == 3]

    def first_step(self, generation: int) -> int:
        found: int = wait_until(
            lambda: next((s for g, _, s in self.lines() if g == generation), 0),
            f"a step of generation {generation}\n{self.stack.try_status(self.job)}",
        )
        return found

    def wait_steps(self, generation: int, more: int) -> None:
        """Every rank has made so many steps in that generation."""

        def made(rank: int) -> int:
            return sum((g, r) == (generation, rank) for g, r, _ in self.lines())

        wait_until(lambda: made(0) >= more <= made(1), f"{more} steps of generation {generation}")

    def catalogue(self) -> dict[str, Any]:
        found: dict[str, Any] = self.stack.json("checkpoints", self.job)
        return found

    def entries(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.catalogue()["checkpoints"]
        return found

    def wait_saved(self, step: int) -> dict[str, Any]:
        """The newest checkpoint, once it is of at least this step."""
        found: dict[str, Any] = wait_until(
            lambda: (e := self.entries()) and e[0]["step"] >= step and e[0], f"step {step} saved"
        )
        return found

    def kill(self, rank: int) -> None:
        os.kill(self.stack.worker_pid(self.job, rank), signal.SIGKILL)

    def incident(self, kind: str) -> dict[str, Any]:
        found: dict[str, Any] = wait_until(
            lambda: next((i for i in self.stack.json("incidents", self.job) if i["kind"] == kind), None),
            f"an incident {kind}",
        )
        return found


def damage(entry: dict[str, Any]) -> None:
    """Change a byte of each rank's state, behind everybody's back."""
    for shard in Path(entry["where"]).glob("*own*"):
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 0xFF
        shard.write_bytes(data)


def test_a_killed_job_resumes_and_damage_means_the_one_before(stack: Stack, tmp_path: Path) -> None:
    saver = Saver(stack, tmp_path, tmp_path / "store")
    saver.wait_saved(10)
    saver.kill(1)
    first = saver.first_step(2)
    assert first > 10
    saver.wait_steps(2, 15)
    wait_until(lambda: saver.catalogue()["restored"].endswith(".g1"), "what it began with is known")
    shown = saver.catalogue()
    assert shown["store"] == str(tmp_path / "store") and shown["name"] == saver.job
    assert shown["interval"] == 5 and shown["restored"] == f"step-{first - 1}.g1"
    assert shown["checkpoints"][0]["newest"] and shown["checkpoints"][0]["world"] == 2
    table = stack.loom("checkpoints", saver.job).stdout
    assert f"resumed from step-{first - 1}.g1" in table and "every 5 steps" in table

    # A bit of the newest state changes on the disk, while nobody looks.
    pids = [stack.worker_pid(saver.job, rank) for rank in (0, 1)]
    os.kill(pids[0], signal.SIGSTOP)
    newest = saver.entries()[0]
    with stack.client() as client:
        assert client.inject(saver.job, {"kind": "checkpoint-damage"})["kind"] == "checkpoint-damage"
    os.kill(pids[1], signal.SIGKILL)
    first = saver.first_step(3)
    incident = saver.incident("checkpoint-damaged")
    damaged = re.search(r"step-(\d+)\.g\d", incident["verdict"])
    assert damaged and int(damaged[1]) >= newest["step"], "one may have been on its way"
    assert first <= int(damaged[1]), "the one before was used"
    assert "was used instead" in incident["decision"]

    stack.loom("stop", saver.job)
    newest = saver.entries()[0]
    damage(newest)
    told = stack.loom("checkpoints", saver.job, newest["name"], "--verify", check=1)
    assert f"{newest['name']} is damaged" in told.stdout
    found = saver.entries()[0]
    assert not found["whole"] and found["why"] and not found["newest"]


def test_a_running_and_a_stopped_job_go_back_to_a_step(stack: Stack, tmp_path: Path) -> None:
    saver = Saver(stack, tmp_path, tmp_path / "store", "--memory")
    wait_until(lambda: len(saver.entries()) >= 3, "three checkpoints")
    old = saver.entries()[1]
    stack.loom("checkpoints", saver.job, "--pin", old["name"])
    refused = stack.loom("restore", saver.job, "--step", "1000000", check=5)
    assert "does not exist" in refused.stderr and "choose one of the steps" in refused.stderr
    assert stack.status(saver.job)["generation"] == 1
    told = stack.steer("restore", saver.job, "--step", str(old["step"]))
    assert f"went back to {old['name']}" in told.stdout and "without a restart" in told.stdout
    wait_until(lambda: ".b" in saver.entries()[0]["name"], "the new branch has a checkpoint")
    status = stack.status(saver.job)
    assert status["state"] == "running" and status["restarts"] == 0 and status["generation"] == 1
    assert not [i for i in stack.json("incidents", saver.job) if i["kind"] in ("crash", "checkpoint-damaged")]

    stack.loom("stop", saver.job)
    new = saver.entries()[0]
    stack.loom("restore", saver.job, "--step", str(new["step"]))
    assert saver.first_step(2) == new["step"] + 1
    assert saver.catalogue()["restored"] == new["name"]
    wait_until(
        lambda: any(e["generation"] == 2 and e["whole"] for e in saver.entries()), "a checkpoint after it"
    )
    saver.kill(0)
    assert saver.first_step(3) > new["step"] + 1, "from now on the newest state counts"
    stack.loom("stop", saver.job)
    stack.loom("checkpoints", saver.job, "--unpin", old["name"])
    stack.loom("checkpoints", saver.job, "--verify")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that is full after 6 MB."""
    with disks.small_disk(tmp_path / "disk", megabytes=6) as disk:
        yield disk


def fill(path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError, match="No space"):
        while True:
            os.write(file, b"x" * 4096)
    os.close(file)


def test_a_full_and_a_read_only_store_are_incidents_and_training_goes_on(
    stack: Stack, tmp_path: Path, small_disk: Path
) -> None:
    saver = Saver(stack, tmp_path, small_disk)
    saver.wait_saved(5)
    ballast = small_disk / "ballast"
    fill(ballast)
    incident = saver.incident("checkpoint-failed")
    assert "the disk is full" in incident["verdict"] and incident["open"]
    assert incident["id"] in stack.loom("checkpoints", saver.job).stdout
    made = len(saver.lines())
    wait_until(lambda: len(saver.lines()) > made + 20, "training goes on")
    ballast.unlink()
    wait_until(lambda: not saver.incident("checkpoint-failed")["open"], "saving goes well again")

    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    again = wait_until(
        lambda: (i := saver.incident("checkpoint-failed"))["open"] and i, "a read-only store is told too"
    )
    assert "read-only" in again["verdict"]
    made = len(saver.lines())
    wait_until(lambda: len(saver.lines()) > made + 20, "training goes on")
    status = stack.status(saver.job)
    assert status["state"] == "running" and status["restarts"] == 0 and status["generation"] == 1
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    wait_until(lambda: not saver.incident("checkpoint-failed")["open"], "and ends when it can be written")
    stack.loom("stop", saver.job)


@pytest.mark.parametrize("keep", [2, 50])
def test_a_disk_with_room_for_two_checkpoints_always_has_one_to_resume_from(
    stack: Stack, tmp_path: Path, small_disk: Path, keep: int
) -> None:
    """2.1 MB each: two fit. With keep=2 each save makes room; with keep=50 later saves fail."""
    saver = Saver(stack, tmp_path, small_disk, "--width", "512", "--keep", str(keep))
    saver.wait_saved(5)
    if keep == 2:
        saver.wait_saved(25)  # after two more than there is room for
        assert not stack.faults(saver.job), "the rules make room before a save fails"
    else:
        assert "the disk is full" in saver.incident("checkpoint-failed")["verdict"]
    before = [entry["step"] for entry in saver.entries() if entry["whole"]]
    saver.kill(1)
    first = saver.first_step(2)
    assert first > max(before), f"resumed from the newest of {before}, or from a later one"
    after = [entry for entry in saver.entries() if entry["whole"]]
    assert 1 <= len(after) <= 2 and all(not entry["why"] for entry in after)
    status = stack.status(saver.job)
    assert status["restarts"] == 1 and status["generation"] == 2
    kinds = {one["kind"] for one in stack.faults(saver.job)}
    assert kinds <= {"crash", "checkpoint-failed"}, "it may have been saving when it was killed"
    stack.loom("stop", saver.job)


def test_a_directory_deleted_while_the_job_runs_is_made_again_and_resumed_from(
    stack: Stack, tmp_path: Path
) -> None:
    saver = Saver(stack, tmp_path, tmp_path / "store")
    deleted = saver.wait_saved(10)["step"]
    saver.store.rename(tmp_path / "gone")
    incident = saver.incident("checkpoint-deleted")
    assert "were deleted while it ran" in incident["verdict"]
    new = saver.wait_saved(deleted + 1)["step"]
    status = stack.status(saver.job)
    assert status["state"] == "running" and status["restarts"] == 0, "nothing is restarted for it"
    saver.kill(1)
    assert saver.first_step(2) > new > deleted
    assert "crash" in {one["kind"] for one in stack.faults(saver.job)}
    stack.loom("stop", saver.job)
    stack.loom("checkpoints", saver.job, "--verify")


def test_a_run_whose_checkpoints_another_run_took_over_is_not_restarted_in_vain(
    stack: Stack, tmp_path: Path
) -> None:
    saver = Saver(stack, tmp_path, tmp_path / "store")
    saver.wait_saved(5)
    storage = LocalStorage(saver.store)
    other = number_in_store(storage, saver.job, "another", 1)
    begin_run(storage, saver.job, "another", other.number)
    saver.kill(1)
    status = stack.wait_state(saver.job, "failed", "completed")
    assert status["restarts"] == 1, "one restart finds out, and it is the last"
    assert f"another run of {saver.job} has taken over" in status["reason"], status["reason"]
    assert "not restarted" in status["reason"] and "Traceback" not in status["reason"]
    assert saver.incident("taken-over")["verdict"].startswith(f"another run of {saver.job} has taken over")


def test_an_object_that_does_not_hold_what_was_saved_is_an_incident_and_training_continues(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(stack.env, "LOOM_RESTORE_CHECK", "sample")
    saver = Saver(stack, tmp_path, tmp_path / "store", "--forgetful")
    saver.wait_saved(5)
    saver.kill(1)
    saver.wait_steps(2, 5)
    incident = saver.incident("restore-differs")
    said = r'rank \d restored step-\d+\.g1 and holds something else than was saved in mean\["average"\]'
    assert re.search(said, incident["verdict"])
    assert "training continues" in incident["decision"] and not incident["open"]
    status = stack.status(saver.job)
    assert status["state"] == "running" and status["restarts"] == 1 and status["generation"] == 2
    stack.loom("stop", saver.job)
