"""A device is reported as failed → its workers are ended → first step without it, beside a restart by hand.

    python bench/device_alert.py [--runs 20] [--by-hand 3] [--json]

A real `loom up` on a host with eight GPUs of the stand-in for NVIDIA's library (tests/nvml), two jobs of two
workers that compute on the CPU. One GPU of the first job is reported as failed over HTTP; timed are the end
of the worker on it and the first step of the job on other GPUs. The second job must keep its processes. By
hand: torchrun is ended by SIGTERM and started again, by a person who takes no time to read and to type.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from support.launchers import (
    BIN,
    Notes,
    environment,
    loom_command,
    loom_up,
    process,
    torchrun_command,
    wait_for,
)
from support.table import progress
from torchloom.client import Client, Endpoint

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "unit" / "stories"))
from nvml_stand_in import NvmlStandIn

GPUS = 8
GIVE_UP_S = 180.0


class Watched:
    """A job of two workers under torchloom."""

    def __init__(self, env: dict[str, str], client: Client) -> None:
        self.notes, self._client = Notes(), client
        command = loom_command("submit", self.notes)
        out = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
        self.id = out.split()[-1]
        assert wait_for(lambda: self.notes.most_steps() >= 30, 300), "the job does not step"

    def workers(self) -> dict[str, int]:
        """Device → pid of the worker on it."""
        return {
            device["device"]: user["pid"]
            for device in self._client.devices()["devices"]
            for user in device["workers"]
            if user["job"] == self.id and user["pid"] and device["kind"] == "gpu"
        }


def fail_one(job: Watched, client: Client) -> tuple[float, float] | None:
    """Report a GPU of the job as failed: seconds until its worker has ended, and until the first step."""
    if not wait_for(lambda: len(job.workers()) == 2, GIVE_UP_S):
        return None
    device, pid = sorted(job.workers().items())[0]
    before = {p for p, *_ in job.notes.steps()}
    told_ns = time.monotonic_ns()
    client.fail_device(device, {"why": "bench"})
    if not wait_for(lambda: not Path(f"/proc/{pid}").exists(), GIVE_UP_S):
        return None
    ended_s = (time.monotonic_ns() - told_ns) / 1e9
    if not wait_for(lambda: job.notes.first_step_ns(but=before) is not None, GIVE_UP_S):
        return None
    first = job.notes.first_step_ns(but=before)
    assert first is not None
    client.return_device(device, {"why": "bench"})
    return ended_s, (first - told_ns) / 1e9


def by_hand() -> float | None:
    """End torchrun by SIGTERM and start it again: seconds to the first step."""
    notes = Notes()
    try:
        with process(torchrun_command(notes), environment()) as first:
            if not wait_for(lambda: notes.most_steps() >= 30, 300):
                return None
            before = {pid for pid, *_ in notes.steps()}
            began_ns = time.monotonic_ns()
            first.terminate()
            first.wait()
        with process(torchrun_command(notes), environment()) as second:
            if not wait_for(lambda: notes.first_step_ns(but=before) is not None, GIVE_UP_S):
                return None
            found = notes.first_step_ns(but=before)
            second.terminate()
            second.wait()
        return None if found is None else (found - began_ns) / 1e9
    finally:
        notes.remove()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--by-hand", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    ended: list[float] = []
    stepped: list[float] = []
    with tempfile.TemporaryDirectory(prefix="loom-bench-nvml-") as directory:
        nvml = NvmlStandIn(Path(directory))
        nvml.write(GPUS)
        with loom_up(**nvml.env) as env:
            os.environ["LOOM_HOME"] = env["LOOM_HOME"]
            with Client(Endpoint.find()) as client:
                job, beside = Watched(env, client), Watched(env, client)
                untouched = beside.workers()
                for run in range(args.runs):
                    found = fail_one(job, client)
                    progress(f"run {run + 1}: {found}")
                    if found is not None:
                        ended.append(found[0])
                        stepped.append(found[1])
                kept = beside.workers() == untouched
            for one in (job, beside):
                subprocess.run(
                    [BIN / "loom", "stop", "--kill", one.id], env=env, check=False, stdout=subprocess.DEVNULL
                )
                one.notes.remove()
    hand = []
    for run in range(args.by_hand):
        taken = by_hand()
        progress(f"by hand {run + 1}: {taken}")
        if taken is not None:
            hand.append(taken)
    report(args, ended, stepped, hand, kept)


def report(
    args: argparse.Namespace, ended: list[float], stepped: list[float], hand: list[float], kept: bool
) -> None:
    found: dict[str, object] = {
        "runs": args.runs,
        "came_back": len(stepped),
        "beside_kept_its_processes": kept,
    }
    for name, seconds in (("worker_ended", ended), ("first_step", stepped), ("by_hand_first_step", hand)):
        if seconds:
            found[f"{name}_p50_s"] = median(seconds)
            found[f"{name}_worst_s"] = max(seconds)
    if stepped and hand:
        found["by_hand_ratio_p50"] = median(hand) / median(stepped)
    if args.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:<28} {value:.3f}" if isinstance(value, float) else f"{name:<28} {value}")


if __name__ == "__main__":
    main()
