"""HSDP under torchft, on GPUs of a stand-in for NVIDIA's library: a lost rank or device costs one replica."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvml_stand_in import NvmlStandIn
from replica_runs import EXAMPLES, Replicas, started
from stack import Stack, wait_until


@pytest.fixture
def gpus() -> Iterator[Stack]:
    with tempfile.TemporaryDirectory(prefix="loom-e2e-") as root:
        nvml = NvmlStandIn(Path(root) / "nvml")
        nvml.write(6)
        stack = Stack(Path(root) / "home")
        stack.env |= nvml.env | {"PYTHONPATH": ""}
        del stack.env["LOOM_SLOTS"]
        try:
            stack.up()
            yield stack
        finally:
            stack.end()


def pids(job: Replicas, index: int) -> list[int]:
    return [worker["pid"] for worker in job.stack.status(job.jobs[index])["workers"]]


def devices(job: Replicas, index: int) -> set[str]:
    workers = job.stack.json("devices")["workers"]
    mine = f"{job.jobs[index]}/"
    return {d for w in workers if w["worker"].startswith(mine) for d in w["devices"] if d.startswith("GPU-")}


def replaced(job: Replicas, before: list[int]) -> list[int]:
    """Pids of replica 1 when all its ranks are new, and it trains with the other."""

    def new() -> bool:
        now = pids(job, 1)
        return len(now) == 2 and all(now) and not set(now) & set(before)

    wait_until(new, "both ranks of replica 1 are new processes")
    job.wait_steps(2, 2, (0, 1))
    return pids(job, 1)


def test_a_rank_or_a_device_that_is_lost_costs_its_replica_and_no_other(gpus: Stack) -> None:
    script = EXAMPLES / "torchft_hsdp.py"
    job = started(gpus, "hsdp", steps=1_000_000, script=script, flags=("--nproc-per-node", "2"))
    stays, lost = pids(job, 0), pids(job, 1)
    held = [devices(job, 0), devices(job, 1)]
    assert [len(one) for one in held] == [2, 2] and not held[0] & held[1]

    os.kill(lost[1], signal.SIGKILL)
    second = replaced(job, lost)

    failed = min(devices(job, 1))
    gpus.loom("device", "fail", failed, "--why", "Xid 79")
    third = replaced(job, second)
    assert failed not in devices(job, 1)

    drained = min(devices(job, 1))
    gpus.loom("device", "drain", drained)
    replaced(job, third)
    assert devices(job, 1).isdisjoint({failed, drained})

    assert pids(job, 0) == stays and devices(job, 0) == held[0], "the other replica never left its loop"
    steps = [step for step, _ in job.steps(0)]
    assert steps == sorted(steps)
    incidents = [one for name in job.jobs for one in gpus.json("incidents", name)]
    assert not [one for one in incidents if one["kind"] == "divergence"], incidents
    job.end_together()
    shards = [job.hashes(index, rank)[-1] for index in range(2) for rank in range(2)]
    assert shards[:2] == shards[2:] and shards[0] != shards[1], "both replicas end with the same shards"
