"""The strongest oracle: a disturbed run ends bit-identical to an undisturbed one, on the same samples."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from runs import Run, compare, disturb, random_steps
from s3 import S3Server
from stack import Stack, wait_until

from torchloom.data.demo import make

STEPS = 300
SEED = int(os.environ.get("LOOM_SEED", "5"))
CHOSEN = (25, 26, 74, 150, 285)
"""When a save begins, while it is written, before one, in the middle, near the end."""
TURN = ("worker", "agent", "worker", "weaver", "nats", "worker", "spawner", "worker", "agent", "worker")
TURN_S3 = (
    *("worker", "store", "agent", "worker", "weaver", "nats", "store, worker", "spawner"),
    *("worker", "store", "agent", "worker"),
)
"""Ten kills of our own parts, and three of the server: one of them while a worker is to be restored."""
RESTORED = 3
"""Lives that must have begun with a saved state; one that is killed before the first save begins anew."""


@pytest.mark.parametrize("world", [2, 3, 4])
def test_killed_workers_resume_bit_identical_from_memory(stack: Stack, tmp_path: Path, world: int) -> None:
    args = ("--every", "20", "--step-ms", "20")
    plain = Run(stack, tmp_path / "plain", world, 60, *args)
    plain.finish()
    disturbed = Run(stack, tmp_path / "disturbed", world, 60, *args)
    disturbed.wait_step(7)
    disturbed.kill_worker(world - 1)
    disturbed.wait_step(25)
    disturbed.kill_worker(0)
    status = disturbed.finish()
    log = stack.loom("logs", disturbed.job).stdout
    assert status["restarts"] == 2, f"{stack.json('incidents', disturbed.job)}\n{log}"
    assert re.search(r"resumed after step \d+ from memory", log)
    compare(plain, disturbed)


def test_killed_workers_of_a_sharded_training_resume_bit_identical(stack: Stack, tmp_path: Path) -> None:
    """FSDP2: parameters and moments are DTensors, and the script keeps one of its own."""
    args = ("--fsdp", "--layers", "2", "--width", "64", "--every", "10", "--step-ms", "20")
    plain = Run(stack, tmp_path / "plain", 2, 40, *args)
    plain.finish()
    disturbed = Run(stack, tmp_path / "disturbed", 2, 40, *args)
    disturbed.wait_step(7)
    disturbed.kill_worker(1)
    disturbed.wait_step(25)
    disturbed.kill_worker(0)
    assert disturbed.finish()["restarts"] == 2
    assert disturbed.restored_from("memory")
    compare(plain, disturbed)


def train_lives(stack: Stack, root: Path, kills: dict[int, tuple[tuple[int, int], ...]]) -> list[Run]:
    """A sharded training that is resized from life to life; `kills` are (step, rank) by life."""
    runs = []
    for life, (world, steps) in enumerate(((2, 30), (4, 60), (3, 90))):
        args = ("--fsdp", "--every", "7", "--step-ms", "20", "--save-last")
        store = ("--dir", str(root / "store"), "--name", "resized")
        run = Run(stack, root / f"life-{life}", world, steps, *args, *store)
        for step, rank in kills.get(life, ()):
            run.wait_step(step)
            run.kill_worker(rank)
        run.finish()
        runs.append(run)
    return runs


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_sharded_training_that_is_resized_and_killed_ends_like_one_that_is_only_resized(
    stack: Stack, tmp_path: Path
) -> None:
    """Some kills come before the first save of the new size, so that shards are put together once more."""
    plain = train_lives(stack, tmp_path / "plain", {})
    kills = {0: ((9, 1),), 1: ((32, 3), (50, 0)), 2: ((62, 2), (80, 1))}
    disturbed = train_lives(stack, tmp_path / "disturbed", kills)
    assert [run.stack.status(run.job)["restarts"] for run in disturbed] == [1, 2, 2]
    for one, other in zip(plain, disturbed, strict=True):
        compare(one, other)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("world", "tier"), [(2, "memory"), (3, "disk"), (4, "memory")])
def test_ten_kills_of_everything_leave_no_trace_in_a_sharded_training(
    stack: Stack, tmp_path: Path, world: int, tier: str
) -> None:
    args = ("--fsdp", "--every", "25", "--step-ms", "30", *(("--no-memory",) if tier == "disk" else ()))
    plain = Run(stack, tmp_path / "plain", world, STEPS, *args)
    plain.finish(300)
    disturbed = Run(stack, tmp_path / "disturbed", world, STEPS, *args)
    disturb(disturbed, random_steps(STEPS, len(TURN), SEED, CHOSEN), TURN, SEED)
    assert disturbed.finish(600)["restarts"] >= TURN.count("worker")
    assert disturbed.restored_from("memory" if tier == "memory" else "the store") >= RESTORED
    compare(plain, disturbed)


def test_a_disturbed_run_resumes_bit_identical_from_disk(stack: Stack, tmp_path: Path) -> None:
    args = ("--every", "5", "--step-ms", "20", "--no-memory")
    plain = Run(stack, tmp_path / "plain", 3, 60, *args)
    plain.finish()
    disturbed = Run(stack, tmp_path / "disturbed", 3, 60, *args)
    turn = ("worker", "spawner", "worker", "nats", "worker")
    disturb(disturbed, random_steps(60, len(turn), seed=11), turn, seed=11)
    assert disturbed.finish()["restarts"] >= 3
    assert disturbed.restored_from("the store")
    compare(plain, disturbed)


def arm(run: Run, operation: str) -> bool:
    """Let it make one more step, unless all ranks are armed for what is planned; whether they are. No step is
    made before the last one is known: a service that stands still must not miss the one that was named."""
    state = run.stack.json("operations", run.job, operation)["state"]
    assert state in ("waiting", "preparing", "arming", "confirmed"), state
    made = run.lines(0)[-1][1]
    if state != "confirmed" and run.stack.status(run.job)["step"] >= made:
        run.go_on(made + 1)
        time.sleep(0.1)  # for the message that they find at its end
    return bool(state == "confirmed")


def test_a_steered_run_that_is_killed_ends_like_one_that_was_not(stack: Stack, tmp_path: Path) -> None:
    """Batch and learning rate are changed at a step that the killed run makes twice."""
    args = ("--every", "10", "--step-ms", "10", "--no-memory")
    runs = [Run(stack, tmp_path / name, 2, 135, *args, until=80) for name in ("plain", "disturbed")]
    for run in runs:
        run.wait_step(80)
        with stack.client() as client:
            change = {"values": {"batch_size": 30, "lr": 5e-4}, "at_step": 104}
            asked = client.change(run.job, change)["operation"]
        wait_until(lambda r=run, o=asked: arm(r, o), "all ranks are armed")
        run.go_on(run.steps - 3)
    plain, disturbed = runs
    disturbed.wait_step(107)
    disturbed.kill_worker(1)
    disturbed.wait_step(120)
    disturbed.kill_worker(0)
    assert disturbed.finish()["restarts"] == 2 and plain.finish()["restarts"] == 0
    sizes = [len(indices.split(",")) for (rank, _), indices in sorted(plain.samples().items()) if rank == 0]
    assert set(sizes[:103]) <= {12, 10} and set(sizes[104:]) <= {15, 10, 13}, sizes
    compare(plain, disturbed)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("tier", ["memory", "disk"])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_ten_kills_of_everything_leave_no_trace(stack: Stack, tmp_path: Path, world: int, tier: str) -> None:
    args = ("--every", "25", "--step-ms", "30", *(("--no-memory",) if tier == "disk" else ()))
    plain = Run(stack, tmp_path / "plain", world, STEPS, *args)
    plain.finish(300)
    disturbed = Run(stack, tmp_path / "disturbed", world, STEPS, *args)
    disturb(disturbed, random_steps(STEPS, len(TURN), SEED, CHOSEN), TURN, SEED)
    assert disturbed.finish(600)["restarts"] >= TURN.count("worker")
    assert disturbed.restored_from("memory" if tier == "memory" else "the store") >= RESTORED
    compare(plain, disturbed)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("world", [2, 3, 4])
def test_ten_kills_and_a_store_that_dies_leave_no_trace(
    stack: Stack, s3: S3Server, tmp_path: Path, world: int
) -> None:
    make(tmp_path / "corpus", "jsonl", shards=8, lines=40)
    corpus = s3.fill(tmp_path / "corpus", "corpus")
    args = ("--every", "25", "--no-memory", "--dataset", corpus, "--step-ms")
    stack.env |= {**s3.environment, "LOOM_DATA_CACHE": str(tmp_path / "cache-plain")}
    plain = Run(stack, tmp_path / "plain", world, STEPS, *args, "30")
    plain.finish(300)
    stack.env |= {"LOOM_DATA_CACHE": str(tmp_path / "cache-disturbed")}
    # Longer steps, because the server takes seconds to come back, and the run must not be over by then.
    disturbed = Run(stack, tmp_path / "disturbed", world, STEPS, *args, "200")
    at = random_steps(STEPS, len(TURN_S3), SEED, CHOSEN)
    disturb(disturbed, at, TURN_S3, SEED, store=s3)
    assert disturbed.finish(600)["restarts"] >= TURN.count("worker")
    assert disturbed.restored_from("the store") >= RESTORED
    assert not (stack.home.root / "checkpoints").exists()
    compare(plain, disturbed)
