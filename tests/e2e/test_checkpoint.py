"""`loom.Checkpoint` with real ranks: shards that move, buckets that come back, S3 that goes away."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from forked import Forked
from runs import Run, compare
from s3 import S3Server
from stack import SCRIPTS, Stack, wait_until

from torchloom.checkpoint.memory import tier
from torchloom.checkpoint.store.catalogue import list_checkpoints
from torchloom.checkpoint.store.reader import find
from torchloom.checkpoint.store.storage import open_storage


@pytest.mark.parametrize(
    ("kind", "worlds"),
    [("fsdp", (2, 2, 3, 1)), ("fsdp", (2, 1, 2, 4)), ("ddp", (2, 2, 3, 1)), ("memory", (2, 2))],
)
def test_a_state_moves_between_worlds(
    ranks: Forked, tmp_path: Path, kind: str, worlds: tuple[int, ...]
) -> None:
    """Every kind of leaf beside a sharded model. With as many ranks as before, what was restored is saved as
    the same bytes again."""

    def lines(world: int, steps: int) -> list[str]:
        return ranks.lines(world, SCRIPTS / "reshard.py", kind, str(tmp_path), str(steps), directory=tmp_path)

    def sums(name: str, step: int) -> list[tuple[int, str, int, str]]:
        found = find(open_storage(str(tmp_path), {}), name, step=step).found
        assert found is not None
        return [(entry.rank, entry.name, entry.size, entry.checksum) for entry in found.files]

    saved = lines(worlds[0], 3)[-1].removeprefix("saved ")
    for n, world in enumerate(worlds[1:], 1):
        first, last = lines(world, 3 + 3 * n)
        assert first == f"restored {saved}"
        saved = last.removeprefix("saved ")
        if world == worlds[n - 1] and kind != "memory":  # slots are used again: old bytes lie between tensors
            assert sums("again", 3 * n) == sums("job", 3 * n)


def test_buckets_come_back_without_a_trace(ranks: Forked, tmp_path: Path) -> None:
    assert ranks.lines(3, SCRIPTS / "buckets.py", directory=tmp_path) == ["the same buckets"]


@pytest.mark.parametrize("where", ["store", "memory"])
def test_a_restore_at_the_last_step_gives_each_rank_its_own_buffers(
    ranks: Forked, tmp_path: Path, where: str
) -> None:
    (trained,) = ranks.lines(2, SCRIPTS / "last_step.py", str(tmp_path), where, directory=tmp_path)
    back = ranks.lines(2, SCRIPTS / "last_step.py", str(tmp_path), where, directory=tmp_path)
    kind, *digests = trained.split()
    assert kind == "trained" and len(set(digests)) == 2, "the ranks differ, or this test tests nothing"
    assert back == [" ".join(("restored", *digests)), " ".join(("rolled back", *digests))]


def test_ranks_never_mix_two_saves_of_one_step(ranks: Forked, tmp_path: Path) -> None:
    """Both saves have the same name; a rank that was killed between the two has only the first."""

    def lines(what: str, directory: Path) -> list[str]:
        directory.mkdir(exist_ok=True)
        return ranks.lines(2, SCRIPTS / "same_step.py", str(directory), what, directory=directory)

    assert lines("killed", tmp_path / "killed") == []
    assert lines("restored", tmp_path / "killed") == ["1.0 1.0"]
    assert lines("rolled-back", tmp_path / "live") == ["1.0 1.0"]


def test_ranks_agree_on_the_saves_after_a_second_restore(ranks: Forked, tmp_path: Path) -> None:
    """What they agreed on before must not be taken for what they agree on now."""
    script = SCRIPTS / "same_step.py"
    (values,) = ranks.lines(2, script, str(tmp_path), "again", directory=tmp_path)
    assert len(set(values.split())) == 1
    saved = [one.step for one in list_checkpoints(open_storage(str(tmp_path), {}), "job") if one.whole]
    assert sorted(saved)[:2] == [4, 8] and max(saved) >= 14, saved


def test_a_run_on_s3_survives_the_death_of_workers_and_of_the_server(
    stack: Stack, s3: S3Server, tmp_path: Path
) -> None:
    stack.env |= {**s3.environment, "LOOM_STORE_TIMEOUT": "1"}
    args = ("--every", "5", "--no-memory", "--step-ms", "1")
    plain = Run(stack, tmp_path / "plain", 2, 250, *args)
    plain.finish()
    disturbed = Run(stack, tmp_path / "disturbed", 2, 250, *args, until=12)
    log_file = stack.home.jobs_dir / disturbed.job / "rank-0.log"
    disturbed.wait_step(12)
    s3.kill()
    disturbed.creep(lambda: "training continues" in log_file.read_text(), "a save that failed")
    s3.start()
    missed = disturbed.lines(0)[-1][1]
    disturbed.creep(lambda: disturbed.newest_saved() > missed, "saving goes on")
    ended = disturbed.end_worker(1)
    disturbed.go_on(disturbed.steps - 1)
    disturbed.wait_next(1, ended)
    status = disturbed.finish()
    assert status["restarts"] == 1
    log = stack.loom("logs", disturbed.job).stdout
    restored = re.findall(r"resumed after step (\d+) from the store", log)
    assert [int(step) > missed for step in restored] == [True], f"saving went on after step {missed}: {log}"
    assert s3.environment["S3_SECRET_KEY"] not in log
    compare(plain, disturbed)


def test_the_memory_tier_is_there_while_the_job_runs_and_goes_with_it(stack: Stack, tmp_path: Path) -> None:
    run = Run(stack, tmp_path / "out", 2, 100_000, "--every", "50", "--step-ms", "5")
    run.wait_step(20)
    folder = tier.directory(stack.home.boxes, run.job)
    wait_until(lambda: tier.size(folder) > 0, "a state in memory")
    assert sum(name.name.startswith("shared.") for name in folder.iterdir()) in (1, 2, 3)
    stack.loom("stop", run.job)
    stack.loom("down")
    assert not folder.exists()
    stack.wait_nothing_left()


def test_a_job_waits_for_a_store_that_is_away_for_longer_than_its_restarts_last(
    stack: Stack, s3: S3Server, tmp_path: Path
) -> None:
    stack.env |= {**s3.environment, "LOOM_STORE_TIMEOUT": "1"}
    # So many steps that it cannot be over before it is disturbed, however slow everything else is.
    run = Run(stack, tmp_path / "out", 2, 1_000_000, "--every", "5", "--no-memory", "--step-ms", "50")
    wait_until(lambda: stack.json("checkpoints", run.job)["checkpoints"], "a state to come back to")
    run.wait_step(6)
    before, restored = stack.status(run.job)["restarts"], run.restored_from("the store")
    s3.kill()
    ended = run.end_worker(1)
    # With three restarts in vain a job gives up; these tries are none.

    def fourth_try() -> bool:
        found = stack.try_status(run.job)
        reason = found.get("reason", "")
        tries = re.search(r"the checkpoint store is unreachable.*\(try (\d+)\)", reason)
        return tries is not None and int(tries[1]) >= 4 and found["state"] == "backoff"

    wait_until(fourth_try, "a fourth try")
    s3.start()
    run.wait_next(1, ended)
    assert stack.status(run.job)["restarts"] == before + 1
    wait_until(lambda: run.restored_from("the store") == restored + 1, "its log says so")
