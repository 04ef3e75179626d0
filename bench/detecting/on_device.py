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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detecting.hurting import end, submit
from detecting.listening import Listener
from detecting.schedule import Budget, Planned, perform
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
    "size": ("desync", "crash"),
    "another": ("desync", "crash"),
    "long": ("hang",),
    "eval": ("hang",),
    "save": ("hang",),
    "suspend": ("hang", "no-progress"),
    "none": (),
}
MEANING = {
    "kill": "killed",
    "stop": "SIGSTOP",
    "loop": "host stuck in a loop, device idle",
    "sync": "kernel stuck, host waits in `.item()`",
    "kernel": "kernel stuck, host continues",
    "communication": "communication does not end (no rank is named)",
    "lost": "device lost, host does not notice",
    "slow-1.3": "kernels 1.3×",
    "slow-2": "kernels 2×",
    "launch": "host launches late",
    "size": "reduces more than the others",
    "another": "gathers where the others reduce",
    "long": "a kernel of 20 s (harmless)",
    "eval": "evaluates for 20 s on its device (harmless)",
    "save": "its host writes for 20 s (harmless)",
    "suspend": "somebody stops all ranks for 20 s (harmless)",
    "none": "nothing, for 30 s (right: no report)",
}
TIMED = frozenset({"slow-1.3", "slow-2", "launch", "none"})
"""They compare the times of ranks, so nothing runs beside them."""
HARMLESS = frozenset({"long", "eval", "save", "suspend", "none"})
"""A restart would be wrong: they are listened to until they have ended."""
NOBODYS = ("communication", "suspend", "none")
PAIRS = ("size", "another")
"""Of two ranks that disagree nobody can tell who is wrong."""
AT_STEP = 60
NOTES = (
    "right: the first report of the right kind that names the right rank (communication: that names nobody)",
    "s: from the fault to the right report, in the median; ahead: steps that hosts are ahead of devices",
    "false restarts: of jobs in which nothing was wrong, or which would have continued by themselves; goal 0",
    "watchdog: NCCL's rule, a collective in progress for 600 s; torchrun sees exits only",
)


def run(listener: Listener, args: argparse.Namespace) -> None:
    made = accelerator.build()
    if made.library is None:
        raise SystemExit(f"no simulated accelerator here: {made.detail or made.outcome.value}")
    faults = args.faults.split(",") if args.faults else list(EXPECTED)
    if unknown := set(faults) - set(EXPECTED):
        raise SystemExit(f"there is no fault {', '.join(sorted(unknown))}: there are {', '.join(EXPECTED)}")
    found: list[dict[str, Any]] = []

    def planned(fault: str, size: int, ahead: int, number: int) -> Planned:
        def do(client: Client) -> None:
            one = _one(client, listener, fault, size, ahead, number)
            found.append(one)
            right = "missed" if one["right_s"] is None else f"right after {one['right_s']:.1f} s"
            progress(f"{fault} ×{size} ahead {ahead} rank {one['rank']}: {right}, reported {one['told']}")

        alone = fault in TIMED
        return Planned(
            f"{fault} ×{size} ahead {ahead}", _horizon_s(fault) if fault in HARMLESS else 10.0, alone, do
        )

    every = [
        planned(fault, size, ahead, number)
        for number in range(args.runs)
        for size in map(int, args.sizes.split(","))
        for fault in faults
        for ahead in map(int, args.ahead.split(","))
    ]
    perform(every, args.at_once, Budget(args.budget))
    found.sort(key=lambda one: (faults.index(one["fault"]), one["ahead"]))
    emit("Detection on the simulated accelerator", list(_rows(found)), NOTES, args.json)
    if args.markdown:
        print(*for_docs(found), sep="\n")


def for_docs(found: Sequence[dict[str, Any]]) -> list[str]:
    """The table of docs/detection.md."""
    aheads = sorted({one["ahead"] for one in found})
    lines = [
        f"| what happens on one rank | right | s, {' / '.join(map(str, aheads))} steps ahead "
        "| false restarts |",
        "|---|---|---|---|",
    ]
    for fault in dict.fromkeys(one["fault"] for one in found):
        mine = [one for one in found if one["fault"] == fault]
        right = sum(_is_right(one) for one in mine)
        took = []
        for ahead in aheads:
            some = [one["right_s"] for one in mine if one["ahead"] == ahead and one["right_s"] is not None]
            took.append(f"{statistics.median(some):.1f}" if some else "–")
        shown = " / ".join(took) if EXPECTED[fault] else ""
        false = _false_restarts(mine)
        lines.append(f"| {MEANING[fault]} | {right} of {len(mine)} | {shown} | {false} |")
    return lines


def _is_right(one: dict[str, Any]) -> bool:
    if one["fault"] in HARMLESS and one.get("restarts"):
        return False
    return one["right_s"] is not None if EXPECTED[one["fault"]] else not one["told"]


def _false_restarts(runs: Sequence[dict[str, Any]]) -> int:
    return sum(one.get("restarts", 0) for one in runs if one["fault"] in HARMLESS)


def _horizon_s(fault: str) -> float:
    return 60.0 if fault in TIMED and EXPECTED[fault] else 30.0


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
            _listen(client, job, result, began, _horizon_s(fault))
            result["restarts"] = client.job(job)["restarts"]
            result["peers"] = {name: at - began for name, (at, _) in heard.first.items() if at >= began}
        finally:
            end(client, job)
            listener.forget(job)
    return result


def _listen(client: Client, job: str, result: dict[str, Any], began: float, horizon_s: float) -> None:
    fault, known = result["fault"], set()
    until = time.monotonic() + horizon_s
    while time.monotonic() < until and (result["right_s"] is None or fault in HARMLESS):
        time.sleep(0.1)
        for incident in client.incidents(job=job):
            said = (incident["kind"], incident["culprit"])
            if said in known:
                continue
            known.add(said)
            at_s = max(0.0, time.time() - began)
            result["told"].append([*said, round(at_s, 1), incident["verdict"][:160]])
            wanted = (None,) if fault in NOBODYS else (result["rank"],)
            wanted += (None,) if fault in PAIRS else ()
            right = incident["kind"] in EXPECTED[fault] and incident["culprit"] in wanted
            if right and result["right_s"] is None:
                result["right_s"] = at_s


def _rows(found: list[dict[str, Any]]) -> Any:
    for fault in dict.fromkeys(one["fault"] for one in found):
        for ahead in dict.fromkeys(one["ahead"] for one in found if one["fault"] == fault):
            runs = [one for one in found if (one["fault"], one["ahead"]) == (fault, ahead)]
            right = [one["right_s"] for one in runs if one["right_s"] is not None]
            wrong = sum(len(one["told"]) - (one["right_s"] is not None) for one in runs)
            yield {
                "fault": fault,
                "ahead": ahead,
                "runs": len(runs),
                "right": f"{sum(map(_is_right, runs))}/{len(runs)}",
                "s": round(statistics.median(right), 1) if right else None,
                "other reports": wrong,
                "false restarts": _false_restarts(runs),
                **{
                    name: round(min(seen), 1)
                    if (seen := [one["peers"][name] for one in runs if name in one.get("peers", {})])
                    else None
                    for name in PEERS
                },
            }
