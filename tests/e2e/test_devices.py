"""Devices on a real stack: the map is that of the real processes, and only workers on a failed device change.

The GPUs are those of a stand-in for NVIDIA's library, which the agent loads through the real nvidia-ml-py.
Where a worker runs is what its process finds in its environment.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import superbench_stand_in
from nvml_stand_in import NvmlStandIn, gpu
from stack import Stack, wait_until

from torchloom.client import NotAnswering, Unavailable
from torchloom.errors import Conflict

GPUS = 8


class Gpus:
    """A stack whose host has GPUs, with three jobs of two workers."""

    def __init__(self, root: Path) -> None:
        self.nvml = NvmlStandIn(root / "nvml")
        self.nvml.write(GPUS)
        self.stack = Stack(root / "home")
        self.stack.env |= self.nvml.env
        self.programs = root / "bin"
        self.stack.env["PATH"] = f"{self.programs}:{self.stack.env['PATH']}"
        del self.stack.env["LOOM_SLOTS"]
        self.stack.up()
        self.notes = root / "notes"
        self.notes.mkdir()
        self.jobs = [self.stack.submit("waits.py", str(self.notes)) for _ in range(3)]
        for job in self.jobs:
            self.stack.wait_state(job, "running")

    def post(self, device: str, what: str, **body: object) -> None:
        """Asked again while the control service is coming back; the first one may have been taken."""
        tries = 0

        def ask() -> bool:
            nonlocal tries
            tries += 1
            try:
                with self.stack.client() as client:
                    client.request("POST", f"/devices/{device}/{what}", body=body)
            except (NotAnswering, Unavailable):
                return False
            except Conflict:
                return tries > 1
            return True

        wait_until(ask, f"{what} of {device}")

    def truth(self) -> dict[str, tuple[int, str]]:
        """Pid and device of every worker, as the processes themselves show it."""
        found = {}
        living = {process.pid for process in self.stack.processes()}
        for path in self.notes.glob("*.json"):
            note = json.loads(path.read_text())
            if note["pid"] in living:
                seen = note["CUDA_VISIBLE_DEVICES"].split(",")
                worker = f"{note['LOOM_JOB']}/rank-{note['RANK']}"
                found[worker] = (note["pid"], seen[int(note["LOCAL_RANK"]) % len(seen)])
        return found

    def map(self) -> dict[str, tuple[int, str]]:
        """The same as the API tells it, from the side of the devices; both sides must agree."""
        told = self.stack.json("devices")
        pids = {u["worker"]: u["pid"] for d in told["devices"] for u in d["workers"]}
        there = {(u["worker"], d["device"]) for d in told["devices"] for u in d["workers"]}
        here = {(w["worker"], device) for w in told["workers"] for device in w["devices"]}
        assert there == here
        return {worker: (pids[worker], device) for worker, device in there if device.startswith("GPU-")}

    def settled(self) -> dict[str, tuple[int, str]]:
        """The truth, once the map is equal to it and all jobs run."""

        def equal() -> dict[str, tuple[int, str]] | None:
            states = {self.stack.try_status(job).get("state") for job in self.jobs}
            truth = self.truth()
            return truth if states == {"running"} and len(truth) == 6 and self.map() == truth else None

        found: dict[str, tuple[int, str]] = wait_until(equal, "the map is the truth")
        return found

    def check_only(self, before: dict[str, tuple[int, str]], affected: set[str], without: set[str]) -> None:
        """Only jobs that were affected have new processes, and nobody is on a device that is out of use."""
        now = self.settled()
        for worker, (pid, device) in now.items():
            assert device not in without
            changed = worker.rpartition("/")[0] in affected
            assert (before[worker][0] != pid) == changed, (worker, before, now)


@pytest.fixture(scope="module")
def gpus() -> Iterator[Gpus]:
    with tempfile.TemporaryDirectory(prefix="loom-e2e-") as root:
        made = Gpus(Path(root))
        try:
            yield made
        finally:
            made.stack.end()


def job_on(truth: dict[str, tuple[int, str]], device: str) -> set[str]:
    return {worker.rpartition("/")[0] for worker, (_, at) in truth.items() if at == device}


def disturb(gpus: Gpus, chance: random.Random, out: set[str]) -> None:
    """One random event: a failure, a drain or a return of a device, with the weaver killed now and then."""
    before = gpus.settled()
    if chance.random() < 0.4:
        gpus.stack.wait_part_back("weaver", gpus.stack.kill_part("weaver"))
        wait_until(lambda: gpus.stack.try_status(gpus.jobs[0]), "the new weaver answers")
    if len(out) == 2:
        device = chance.choice(sorted(out))
        gpus.post(device, "return", why="test passed")
        out.remove(device)
        gpus.check_only(before, set(), out)
        return
    device = chance.choice(sorted({gpu(index) for index in range(GPUS)} - out))
    out.add(device)
    if chance.random() < 0.5:
        gpus.post(device, "failures", why="told so")
    else:
        gpus.post(device, "drain", force=True)
    gpus.check_only(before, job_on(before, device), out)


def test_every_worker_has_a_gpu_of_its_own_and_the_map_is_the_truth(gpus: Gpus) -> None:
    truth = gpus.settled()
    assert len({device for _, device in truth.values()}) == 6


def test_a_gpu_that_falls_off_the_bus_is_replaced_without_anybody_s_help(gpus: Gpus) -> None:
    before = gpus.settled()
    device = before[f"{gpus.jobs[1]}/rank-0"][1]
    index = next(i for i in range(GPUS) if gpu(i) == device)
    gpus.nvml.write(GPUS, {f"{index}.xid": 79, f"{index}.xids": 1})
    wait_until(lambda: gpus.stack.status(gpus.jobs[1])["generation"] == 2, "it is replaced")
    gpus.check_only(before, {gpus.jobs[1]}, {device})
    told = gpus.stack.loom("device", device[:12]).stdout
    assert "failed, by policy: nvml: the GPU has fallen off the bus (Xid 79)" in told
    incidents = [one["kind"] for one in gpus.stack.json("incidents", gpus.jobs[1])]
    assert "device-failed" in incidents and gpus.stack.status(gpus.jobs[1])["restarts"] == 0
    assert "may get workers again" in gpus.stack.loom("device", "return", device).stdout


def test_random_failures_drains_and_returns_with_the_weaver_killed_in_between(gpus: Gpus) -> None:
    chance, out = random.Random(11), set[str]()
    for _ in range(4):
        disturb(gpus, chance, out)
    for device in sorted(out):
        gpus.post(device, "return")


def test_an_unknown_device_is_refused_with_near_ones_and_a_dry_run_changes_nothing(gpus: Gpus) -> None:
    before = gpus.settled()
    refused = gpus.stack.loom("device", "fail", "GPU-00000001-tost", check=3)
    assert f"did you mean {gpu(1)}" in refused.stderr
    device = before[f"{gpus.jobs[0]}/rank-1"][1]
    told = gpus.stack.loom("device", "fail", device, "--dry-run").stdout
    assert gpus.jobs[0] in told and "would be failed; 1 jobs are affected" in told
    assert gpus.settled() == before


def test_results_of_superbench_are_shown_with_the_device(gpus: Gpus, tmp_path: Path) -> None:
    (node,) = gpus.stack.json("nodes")
    line: dict[str, object] = {"node": node["hostname"], "mem-bw/return_code": 0}
    line |= {f"gemm-flops/FP32:{index}": 100.0 if index == 3 else 200.0 + index for index in range(GPUS)}
    file = tmp_path / "results-summary.jsonl"
    file.write_text(json.dumps(line) + '\n{"time": "monitor"}\n' + '{"node": "elsewhere", "a/b:0": 1}\n')
    told = gpus.stack.loom("superbench", "import", str(file)).stdout
    assert "results of 8 devices were recorded; 0 did not pass" in told
    assert "nothing was recorded for them: elsewhere" in told and "1 lines are neither" in told
    slow = gpus.stack.json("device", gpu(3))["tests"][-1]
    assert slow["passed"] and slow["metrics"][0]["name"] == "gemm-flops/FP32"
    assert slow["metrics"][0]["worse"] == 0.0 and slow["metrics"][0]["shortfall"] > 0.4
    assert "gemm-flops/FP32" in gpus.stack.loom("device", gpu(3)).stdout


def test_a_test_that_cannot_run_leaves_the_device_in_use(gpus: Gpus) -> None:
    """The GPUs of the stand-in are none for torch."""
    busy = {device for _, device in gpus.settled().values()}
    idle = next(gpu(index) for index in range(GPUS) if gpu(index) not in busy)
    refused = gpus.stack.loom("device", "test", idle, check=5)
    assert "was not tested" in refused.stderr and "sees no GPU" in refused.stderr
    found = gpus.stack.json("device", idle)
    assert (found["state"], found["health"]) == ("available", "ok")
    in_use = gpus.stack.loom("device", "test", sorted(busy)[0], check=5)
    assert "cannot be tested now: workers of" in in_use.stderr


def test_superbench_tests_a_gpu_where_it_is_installed(gpus: Gpus) -> None:
    busy = {device for _, device in gpus.settled().values()}
    idle = next(gpu(index) for index in range(GPUS) if gpu(index) not in busy)
    sb = superbench_stand_in.install(gpus.programs, "runs")
    try:
        told = gpus.stack.loom("device", "test", idle).stdout
        assert "superbench" in told and "gemm-flops/rate" in told
        superbench_stand_in.install(gpus.programs, "broken")
        refused = gpus.stack.loom("device", "test", idle, check=5)
        assert "failed the test: gemm-flops returned 32" in refused.stderr
        found = gpus.stack.json("device", idle)
        assert (found["state"], found["health"]) == ("available", "failing")
        superbench_stand_in.install(gpus.programs, "runs")
        gpus.stack.loom("device", "drain", idle)
        assert "may get workers again" in gpus.stack.loom("device", "return", idle, "--test").stdout
    finally:
        sb.unlink()


def test_a_device_is_tested_before_it_is_returned(tmp_path: Path) -> None:
    """With real computation, on the cores of a host without GPUs."""
    stack = Stack(tmp_path / "home")
    try:
        stack.up()
        (device,) = [one["device"] for one in stack.json("devices")["devices"]]
        stack.loom("device", "drain", device)
        told = stack.loom("device", "return", device, "--test").stdout
        assert "may get workers again" in told
        found = stack.json("device", device)
        assert found["state"] == "available" and found["risk"] is None
        result = found["tests"][-1]
        assert result["passed"] and result["source"] == "loom"
        measured = {one["name"]: one["value"] for one in result["metrics"]}
        assert set(measured) == {"all_reduce_gbytes_per_s", "gemm_gflops", "memory_gbytes_per_s"}
        assert all(value > 0 for value in measured.values())
        assert [one["what"] for one in found["history"]][-3:] == ["test started", "test passed", "returned"]
    finally:
        stack.end()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_sixty_random_events(gpus: Gpus) -> None:
    """LOOM_TEST_SEED repeats a run; LOOM_TEST_EVENTS makes it shorter."""
    seed = int(os.environ.get("LOOM_TEST_SEED") or random.randrange(2**32))
    chance, out = random.Random(seed), set[str]()
    for number in range(int(os.environ.get("LOOM_TEST_EVENTS", "60"))):
        print(f"seed {seed}, event {number}", flush=True)
        disturb(gpus, chance, out)
