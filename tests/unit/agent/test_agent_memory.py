"""The agent gives memory tiers back when nobody needs them, and not before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torchloom.agent.checkpoints.memory_tiers import places, release_idle, release_memory
from torchloom.checkpoint.memory import tier
from torchloom.home import Home
from torchloom.model.effects import ReleaseMemory
from torchloom.model.worker import WorkerRef


def host(boxes: Path, *jobs: str) -> Any:
    refs = {WorkerRef(job, 0, 1, 1): None for job in jobs}
    return SimpleNamespace(home=SimpleNamespace(boxes=boxes), workers=refs, starting={}, stores={})


def test_a_tier_is_released_after_nobody_needed_it_for_a_while(tmp_path: Path) -> None:
    tier.directory(tmp_path, "gone").mkdir()
    tier.directory(tmp_path, "runs").mkdir()
    idle: dict[str, float] = {}
    release_idle(host(tmp_path, "runs"), idle, 100.0, 30.0)
    release_idle(host(tmp_path, "runs"), idle, 129.0, 30.0)
    assert {job for job, _ in tier.found_in(tmp_path)} == {"gone", "runs"}
    release_idle(host(tmp_path, "runs"), idle, 131.0, 30.0)
    assert {job for job, _ in tier.found_in(tmp_path)} == {"runs"}


def test_a_job_that_comes_back_in_time_keeps_its_tier(tmp_path: Path) -> None:
    tier.directory(tmp_path, "job").mkdir()
    idle: dict[str, float] = {}
    release_idle(host(tmp_path), idle, 100.0, 30.0)
    release_idle(host(tmp_path, "job"), idle, 120.0, 30.0)
    release_idle(host(tmp_path), idle, 140.0, 30.0)
    assert {job for job, _ in tier.found_in(tmp_path)} == {"job"}


def test_workers_are_told_where_states_go() -> None:
    told = places(Home(Path("/somewhere")), "job")
    assert told["LOOM_CHECKPOINT_DIR"] == "/somewhere/checkpoints"
    if "LOOM_MEMORY_DIR" in told:
        assert told["LOOM_MEMORY_DIR"].endswith("/memory-job")


def test_memory_of_an_ended_job_is_released_on_the_cores_word(tmp_path: Path) -> None:
    for job in ("ended", "again"):
        tier.directory(tmp_path, job).mkdir()
        (tier.directory(tmp_path, job) / "own-0.0").write_bytes(b"state")
    here = host(tmp_path, "again")
    here.node = "n"

    def effect(job: str, generation: int) -> ReleaseMemory:
        return ReleaseMemory(id="e1", cause=1, reason="ended", node="n", job=job, generation=generation)

    assert release_memory(here, effect("ended", 1)).effect == "e1"
    release_memory(here, effect("ended", 1))
    release_memory(here, effect("again", 0))
    assert {job for job, _ in tier.found_in(tmp_path)} == {"again"}, "a later life of it has begun"
