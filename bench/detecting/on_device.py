"""The device regime: jobs on the simulated accelerator, whose hosts run ahead of their devices.

Each job does something to itself at a step (workloads/on_device.py, device_unseen.py); what counts is the
first report of the right kind that names the right rank (device_cases.py). `none` is a healthy job: anything
reported of it is a false alarm.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detecting.device_cases import CASES, DeviceCase
from detecting.hurting import end, submit
from detecting.listening import Listener
from detecting.results import Results
from detecting.schedule import Budget, Planned, perform
from support.launchers import wait_for
from support.peers import PEERS
from support.table import emit, progress
from torchloom.chaos import accelerator
from torchloom.client import Client

NOTES = (
    "right: the first report of the right kind that names the right rank (communication: that names nobody)",
    "s: from the fault to the right report, in the median; ahead: steps that hosts are ahead of devices",
    "false restarts: of jobs in which nothing was wrong, or which would have continued by themselves; goal 0",
    "watchdog: NCCL's rule, a collective in progress for 600 s; torchrun sees exits only",
)


def run(listener: Listener, args: argparse.Namespace, kept: Results | None) -> list[dict[str, Any]]:
    """All records, those of an earlier run with the same file included."""
    made = accelerator.build()
    if made.library is None:
        raise SystemExit(f"no simulated accelerator here: {made.detail or made.outcome.value}")
    faults = args.faults.split(",") if args.faults else list(CASES)
    if unknown := set(faults) - set(CASES):
        raise SystemExit(f"there is no fault {', '.join(sorted(unknown))}: there are {', '.join(CASES)}")
    found = kept.read() if kept is not None else []
    done = {(one["fault"], one["size"], one["ahead"], one["number"]) for one in found}

    def planned(fault: str, size: int, ahead: int, number: int) -> Planned:
        case = CASES[fault]

        def do(client: Client) -> None:
            one = _one(client, listener, case, size, ahead, number)
            found.append(one)
            if kept is not None:
                kept.write(one)
            right = "missed" if one["right_s"] is None else f"right after {one['right_s']:.1f} s"
            progress(f"{fault} ×{size} ahead {ahead} rank {one['rank']}: {right}, reported {one['told']}")

        takes_s = case.horizon_s if case.harmless else 10.0
        return Planned(f"{fault} ×{size} ahead {ahead}", takes_s, case.timed, do)

    every = [
        (fault, max(size, CASES[fault].workers), ahead, number)
        for number in range(args.runs)
        for size in map(int, args.sizes.split(","))
        for fault in faults
        for ahead in map(int, args.ahead.split(","))
    ]
    perform(
        [planned(*one) for one in dict.fromkeys(every) if one not in done], args.at_once, Budget(args.budget)
    )
    return found


def show(found: list[dict[str, Any]], as_json: bool) -> None:
    order = list(CASES)
    found.sort(key=lambda one: (order.index(one["fault"]), one["ahead"]))
    emit("Detection on the simulated accelerator", list(_rows(found)), NOTES, as_json)


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
        shown = " / ".join(took) if CASES[fault].expected else ""
        false = _false_restarts(mine)
        lines.append(f"| {CASES[fault].meaning} | {right} of {len(mine)} | {shown} | {false} |")
    return lines


def _is_right(one: dict[str, Any]) -> bool:
    case = CASES[one["fault"]]
    if case.harmless and one.get("restarts"):
        return False
    return one["right_s"] is not None if case.expected else not one["told"]


def _false_restarts(runs: Sequence[dict[str, Any]]) -> int:
    return sum(one.get("restarts", 0) for one in runs if CASES[one["fault"]].harmless)


def _one(
    client: Client, listener: Listener, case: DeviceCase, size: int, ahead: int, number: int
) -> dict[str, Any]:
    chance = random.Random(f"{case.name} {size} {ahead} {number}")
    rank = chance.randrange(size)
    plain = case.script == "on_device.py"
    kind, _, factor = case.name.partition("-") if plain else (case.name, "", "")
    result: dict[str, Any] = {
        "fault": case.name,
        "size": size,
        "ahead": ahead,
        "number": number,
        "rank": rank,
        "load": os.getloadavg()[0],
        "right_s": None,
        "told": [],
    }
    with tempfile.TemporaryDirectory(prefix="loom-bench-notes-") as folder:
        notes = Path(folder, "notes")
        options = ["--at", str(case.at), "--rank", str(rank), "--ahead", str(ahead)]
        options += ["--slow", factor or "2"] if plain else []
        job = submit(client, size, str(notes), kind, *options, script=case.script)
        heard = listener.begin(job)
        try:
            done = f" {rank} {case.at - 1}\n"
            if not wait_for(lambda: notes.exists() and done in notes.read_text(), 180):
                return {**result, "told": ["did not start"]}
            began = time.time()
            _listen(client, job, case, result, began)
            result["restarts"] = client.job(job)["restarts"]
            result["peers"] = {name: at - began for name, (at, _) in heard.first.items() if at >= began}
        finally:
            end(client, job)
            listener.forget(job)
    return result


def _listen(client: Client, job: str, case: DeviceCase, result: dict[str, Any], began: float) -> None:
    known = set()
    until = time.monotonic() + case.horizon_s
    while time.monotonic() < until and (result["right_s"] is None or case.harmless):
        time.sleep(0.1)
        for incident in client.incidents(job=job):
            finding = client.incident(incident["id"])["finding"]
            culprit = incident["culprit"]
            named = finding["ranks"] if finding else [] if culprit is None else [culprit]
            said = (incident["kind"], tuple(named))
            if said in known:
                continue
            known.add(said)
            at_s = max(0.0, time.time() - began)
            result["told"].append([*said, round(at_s, 1), incident["verdict"][:200]])
            if result["right_s"] is None and case.is_right(*said, result["rank"], result["size"]):
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
