"""One run: a healthy job, a fault, and what is told about it until it is right or time is up."""

from __future__ import annotations

import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

from detecting.cases import Case
from detecting.listening import Heard, Listener
from support.launchers import WORKLOADS, wait_for
from support.table import progress
from torchloom.client import Client

Result = dict[str, Any]
FAULT_AT = 58
"""Completed steps before a script does to itself what it was started for, at its step 60."""
RESUMED = 100
"""Steps of a job that went on after its pause, which comes at step 60."""


def submit(client: Client, size: int, *args: str, script: str = "watched.py", **more: Any) -> str:
    wanted: Any = {
        "program": {"kind": "script", "target": str(WORKLOADS / script), "args": list(args)},
        "cwd": str(Path.cwd()),
        "world_size": size,
        "env": {"OMP_NUM_THREADS": "1"},
        **more,
    }
    made = client.submit(wanted)
    return made["job"]


def end(client: Client, job: str) -> None:
    client.stop(job, {"kill": True, "grace_s": None})
    wait_for(lambda: client.job(job)["ended"], 60)


def run(client: Client, listener: Listener, case: Case, size: int, seed: int, step_ms: float) -> Result:
    """The record of one run, for the file of results."""
    chance = random.Random(f"{case.name} {size} {seed}")
    rank = chance.randrange(size)
    result: Result = {
        "type": "fault",
        "case": case.name,
        "size": size,
        "seed": seed,
        "rank": rank,
        "load": os.getloadavg()[0],
        "told": [],
        "class_s": None,
        "right_s": None,
    }
    args = ["--step-ms", str(step_ms), "--seed", str(seed), *(a.format(rank=rank) for a in case.args)]
    busy = min(0.5, 1 / size)
    if case.busy:
        args += ["--busy", str(busy)]
    limits = {} if case.act_s is None else {"limits": {"hang_act_s": case.act_s}}
    if case.everybody and not case.fault:
        result["between"] = list(range(size))
    if case.two or case.three:
        result["between"] = sorted((rank + n) % size for n in range(3 if case.three else 2))
    env = {"OMP_NUM_THREADS": "1", "LOOM_RECORDER": case.recorder}
    job = submit(client, size, *args, script=case.script, env=env, **limits)
    heard = listener.begin(job)
    try:
        if case.fault:
            if not wait_for(lambda: _trained(client, job, 60 + chance.randrange(20)), 120):
                progress(f"  {job} did not get going")
                return {**result, "type": "failed"}
            time.sleep(case.warm_s)
            heard = listener.begin(job)
            result["step_s"] = statistics.median(w["step_s"] or 0.0 for w in client.job(job)["workers"])
            began = time.time()
            wanted: Any = {
                "kind": case.fault,
                "ranks": [] if case.everybody else [rank],
                "amount": chance.choice(case.amounts) if case.amounts else None,
                "seed": seed,
                **case.more,
            }
            if case.of_demand:
                wanted["amount"] = max(5.0, 100 * busy * wanted["amount"])
            if "peer" in wanted:
                wanted["peer"] = (rank + wanted["peer"]) % size
                result["between"] = sorted((rank, wanted["peer"]))
            result["amount"] = wanted["amount"]
            client.inject(job, wanted)
        else:
            if not wait_for(lambda: client.job(job)["state"] == "running", 120):
                return {**result, "type": "failed"}
            began, result["step_s"] = time.time(), step_ms / 1000
        _listen(client, job, case, result, heard, began)
    finally:
        end(client, job)
        listener.forget(job)
    return result


def _listen(client: Client, job: str, case: Case, result: Result, heard: Heard, began: float) -> None:
    until = time.monotonic() + case.horizon_s
    known: dict[str, tuple[object, ...]] = {}
    told: dict[str, dict[str, Any]] = {}
    right = result.get("between", [result["rank"]])
    while time.monotonic() < until and (result["right_s"] is None or case.harmless):
        if result["right_s"] is not None and _trained(client, job, RESUMED):
            break  # it was reported, nobody restarted it, and it trains again
        time.sleep(0.1)
        if not case.fault and not known and 0 < _steps(client, job) < FAULT_AT:
            began = time.time()  # it trains, and its fault is to come
        for incident in client.incidents(job=job):
            said = incident["kind"], incident["culprit"], *incident["culprits"]
            if known.get(incident["id"]) == said:
                continue
            # One that is told anew, and better, counts from then on.
            first = incident["timeline"]["detected_ns"] / 1e9 if incident["id"] not in known else time.time()
            at_s, known[incident["id"]] = max(0.0, first - began), said
            finding = client.incident(incident["id"])["finding"]
            culprit = incident["culprit"]
            named = incident["culprits"]
            kind, verdict = incident["kind"], incident["verdict"]
            told[incident["id"]] = {"kind": kind, "ranks": named, "at_s": at_s, "verdict": verdict}
            if incident["kind"] not in case.expected:
                continue
            if result["class_s"] is None:
                result["class_s"] = at_s
            # Where nobody can know the rank, all are named, or none; another rank alone is wrong.
            if result["right_s"] is not None:
                continue
            both = sorted({r for t in told.values() if t["kind"] in case.expected for r in t["ranks"]})
            # Those that are slow for different reasons are incidents of their own.
            named = both if case.two or case.three else named
            nobody = result["size"] < case.names_from and culprit in (None, result["rank"])
            if nobody or named == right or [culprit] == right:
                result["right_s"] = at_s
                limit = finding["inputs"].get("report_s") if finding else None
                result["limit_s"] = limit if isinstance(limit, float) else None
                result["decision"] = incident["decision"]
                break
    for incident in client.incidents(job=job):
        if incident["id"] in told:
            told[incident["id"]]["verdict"] = incident["verdict"]  # as it reads at the end
    result["told"] = list(told.values())
    result["restarts"] = client.job(job)["restarts"]
    result["exited"] = any(_exited(client, id) for id in told)
    if not case.expected and not told and not result["restarts"]:
        result["class_s"] = result["right_s"] = 0.0  # nothing was to be reported
    result["false_restart"] = case.harmless and result["restarts"] > 0 and not result["exited"]
    if case.harmless and result["exited"]:
        result["type"] = "failed"  # the workload itself died, which is no case of anything
    result["peers"] = {name: [at - began, list(ranks)] for name, (at, ranks) in heard.first.items()}


def _steps(client: Client, job: str) -> int:
    return max((worker["steps"] or 0 for worker in client.job(job)["workers"]), default=0)


def _exited(client: Client, incident: str) -> bool:
    """Whether a process failed by itself: that is all that torchrun sees."""
    return any(not one["after_stop"] and one["code"] != 0 for one in client.incident(incident)["exits"])


def _trained(client: Client, job: str, steps: int) -> bool:
    view = client.job(job)
    done = [worker["steps"] or 0 for worker in view["workers"]]
    return view["state"] == "running" and bool(done) and min(done) >= steps
