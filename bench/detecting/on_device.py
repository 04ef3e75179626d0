"""The device regime: jobs on the simulated accelerator, whose hosts run ahead of their devices.

Each job does something to itself at a step (workloads/on_device.py); what counts is the first report of the
right kind that names the right rank. `none` is a healthy job: anything reported of it is a false alarm.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from detecting.hurting import end, submit
from detecting.listening import Listener
from support.launchers import wait_for
from support.peers import PEERS
from support.table import emit, progress
from torchloom.chaos import accelerator
from torchloom.client import Client

EXPECTED: dict[str, tuple[str, ...]] = {
    "kill": ("crash",),
    "stop": ("hang",),
    "loop": ("hang",),
    "sync": ("hang",),
    "kernel": ("hang",),
    "communication": ("communication-hang",),
    "lost": ("hang", "crash"),
    "slow-1.3": ("compute-slow",),
    "slow-2": ("compute-slow",),
    "launch": ("host-contention",),
    "none": (),
}
NOBODYS = ("communication", "none")
AT_STEP = 60
NOTES = (
    "right: the first report of the right kind that names the right rank (communication: that names nobody)",
    "s: from the fault to the right report, in the median; ahead: steps that hosts are ahead of devices",
    "restarts: of jobs in which nothing was wrong, or something that does not end by a restart; goal 0",
    "watchdog: NCCL's rule, a collective in progress for 600 s; torchrun sees exits only",
)


def run(client: Client, listener: Listener, args: argparse.Namespace) -> None:
    made = accelerator.build()
    if made.library is None:
        raise SystemExit(f"no simulated accelerator here: {made.detail or made.outcome.value}")
    faults = args.faults.split(",") if args.faults else list(EXPECTED)
    found: list[dict[str, Any]] = []
    for number in range(args.runs):
        for size in map(int, args.sizes.split(",")):
            for fault in faults:
                for ahead in map(int, args.ahead.split(",")):
                    one = _one(client, listener, fault, size, ahead, number)
                    found.append(one)
                    progress(
                        f"{fault} ×{size} ahead {ahead} rank {one['rank']}: right after {one['right_s']}, "
                        f"reported {one['told']}"
                    )
    emit("Detection on the simulated accelerator", list(_rows(found)), NOTES, args.json)


def _one(
    client: Client, listener: Listener, fault: str, size: int, ahead: int, number: int
) -> dict[str, Any]:
    chance = random.Random(f"{fault} {size} {ahead} {number}")
    rank = chance.randrange(size)
    kind, _, factor = fault.partition("-")
    result: dict[str, Any] = {"fault": fault, "ahead": ahead, "rank": rank, "right_s": None, "told": []}
    with tempfile.TemporaryDirectory(prefix="loom-bench-notes-") as folder:
        notes = Path(folder, "notes")
        options = ["--at", str(AT_STEP), "--rank", str(rank), "--ahead", str(ahead)]
        job = submit(client, size, str(notes), kind, *options, "--slow", factor or "2", script="on_device.py")
        heard = listener.begin(job)
        try:
            done = f" {rank} {AT_STEP - 1}\n"
            if not wait_for(lambda: notes.exists() and done in notes.read_text(), 180):
                return {**result, "told": ["did not start"]}
            began = time.time()
            _listen(client, job, result, began, 60.0 if kind in ("slow", "launch") else 30.0)
            result["restarts"] = client.job(job)["restarts"]
            result["peers"] = {name: at - began for name, (at, _) in heard.first.items() if at >= began}
        finally:
            end(client, job)
            listener.forget(job)
    return result


def _listen(client: Client, job: str, result: dict[str, Any], began: float, horizon_s: float) -> None:
    fault, known = result["fault"], set()
    until = time.monotonic() + horizon_s
    while time.monotonic() < until and result["right_s"] is None:
        time.sleep(0.1)
        for incident in client.incidents(job=job):
            said = (incident["kind"], incident["culprit"])
            if said in known:
                continue
            known.add(said)
            at_s = max(0.0, time.time() - began)
            result["told"].append([*said, round(at_s, 1), incident["verdict"][:160]])
            wanted = None if fault in NOBODYS else result["rank"]
            if incident["kind"] in EXPECTED[fault] and incident["culprit"] == wanted:
                result["right_s"] = at_s
                break


def _rows(found: list[dict[str, Any]]) -> Any:
    for fault in dict.fromkeys(one["fault"] for one in found):
        for ahead in dict.fromkeys(one["ahead"] for one in found if one["fault"] == fault):
            runs = [one for one in found if (one["fault"], one["ahead"]) == (fault, ahead)]
            right = [one["right_s"] for one in runs if one["right_s"] is not None]
            healthy = fault == "none"
            wrong = sum(len(one["told"]) - (one["right_s"] is not None) for one in runs)
            yield {
                "fault": fault,
                "ahead": ahead,
                "runs": len(runs),
                "right": f"{sum(not one['told'] for one in runs) if healthy else len(right)}/{len(runs)}",
                "s": round(statistics.median(right), 1) if right else None,
                "other reports": wrong,
                "restarts": sum(
                    one.get("restarts", 0) for one in runs if fault not in ("kill", "stop", "lost", "loop")
                ),
                **{
                    name: round(min(seen), 1)
                    if (seen := [one["peers"][name] for one in runs if name in one.get("peers", {})])
                    else None
                    for name in PEERS
                },
            }
