"""The tables of bench/detect.py, from its file of results alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from detecting.cases import CASES, HANGS
from support.peers import PEERS, interval
from support.table import emit

Rows = list[dict[str, object]]
Results = Sequence[dict[str, Any]]
_PAUSES_ARE_NO_ALARM = (
    "a pause that is reported as a pause is no false alarm unless something is done about it"
)


def show(results: Results, as_json: bool) -> None:
    faults = [r for r in results if r["type"] == "fault"]
    failed = sum(r["type"] == "failed" for r in results)
    if faults:
        notes = [
            "reported: anything; class: the right kind; rank: the right rank too, where one can be named"
        ]
        notes += [
            "seconds and steps from the injection to the incident; over: beyond the limit for reporting"
        ]
        if failed:
            notes.append(f"{failed} runs did not start, or died of themselves, and are in no table")
        emit("detect: faults", by_case(faults), notes, as_json)
        emit("detect: first report", confusion(faults), [], as_json)
        notes = ["runs in which the rule reported anything / named the right rank, before ours was right"]
        emit("detect: rules of peers on the same windows", peers(faults), notes, as_json)
    benign = _newest(r for r in results if r["type"] == "benign")
    if benign:
        emit("detect: benign", healthy(benign), [_PAUSES_ARE_NO_ALARM], as_json)
        emit("detect: rules of peers, benign", healthy_peers(benign), [], as_json)
    if faults:
        notes = ["right: kind and rank; of all incidents of that kind in runs with faults and without"]
        emit("detect: precision", precision(faults, benign), notes, as_json)
    said = [{k: v for k, v in r.items() if k != "type"} for r in results if r["type"] == "launcher"]
    if said:
        emit("detect: SIGSTOP under other launchers", said, [], as_json)


def by_case(faults: Results) -> Rows:
    rows: Rows = []
    for case in [name for name in CASES if any(r["case"] == name for r in faults)]:
        for size in sorted({r["size"] for r in faults if r["case"] == case}):
            mine = [r for r in faults if r["case"] == case and r["size"] == size]
            hits = [r for r in mine if r["right_s"] is not None]
            delays = sorted(r["right_s"] for r in hits)
            steps = [r["right_s"] / r["step_s"] for r in hits if r["step_s"]]
            over = [r["right_s"] - r["limit_s"] for r in hits if r.get("limit_s") is not None]
            rows.append(
                {
                    "fault": case,
                    "workers": size,
                    "n": len(mine),
                    "reported": sum(bool(r["told"]) for r in mine),
                    "class": sum(r["class_s"] is not None for r in mine),
                    "rank": len(hits),
                    "95 %": interval(len(hits), len(mine)),
                    "median s": statistics.median(delays) if delays else None,
                    "p95 s": _p95(delays),
                    "median steps": statistics.median(steps) if steps else None,
                    "over s": statistics.median(over) if over else None,
                    "false restarts": sum(bool(r.get("false_restart")) for r in mine),
                    "also": _also(mine, CASES[case].expected),
                }
            )
    return rows


def _also(mine: Results, expected: Sequence[str]) -> str:
    return " ".join(sorted({told["kind"] for r in mine for told in r["told"]} - {*expected})) or "–"


def confusion(faults: Results) -> Rows:
    """Which fault was reported as what, by the first incident of a run."""
    kinds = sorted({r["told"][0]["kind"] for r in faults if r["told"]})
    rows: Rows = []
    for case in [name for name in CASES if any(r["case"] == name for r in faults)]:
        mine = [r for r in faults if r["case"] == case]
        row: dict[str, object] = {"fault": case}
        for kind in kinds:
            row[kind] = sum(bool(r["told"]) and r["told"][0]["kind"] == kind for r in mine) or ""
        row["nothing"] = sum(not r["told"] for r in mine) or ""
        rows.append(row)
    return rows


def peers(faults: Results) -> Rows:
    rows: Rows = []
    for case in [name for name in CASES if any(r["case"] == name for r in faults)]:
        mine = [r for r in faults if r["case"] == case]
        row: dict[str, object] = {"fault": case, "n": len(mine)}
        row["ours"] = f"{sum(bool(r['told']) for r in mine)} / {sum(r['right_s'] is not None for r in mine)}"
        for rule in PEERS:
            said = [r for r in mine if rule in r["peers"]]
            row[rule] = f"{len(said)} / {sum(r['peers'][rule][1] == [r['rank']] for r in said)}"
        rows.append(row)
    return rows


def precision(faults: Results, benign: Results) -> Rows:
    """Of all incidents of a kind, how many were right; of all faults of a kind, how many were reported."""
    rows: Rows = []
    kinds = {t["kind"] for r in faults for t in r["told"]} | {k for r in benign for k in r["told"]}
    for kind in sorted(kinds | {e for r in faults for e in CASES[r["case"]].expected[:1]}):
        told = [(r, t) for r in faults for t in r["told"] if t["kind"] == kind]
        right = sum(kind in CASES[r["case"]].expected and _names(r, t) for r, t in told)
        false = sum(r["told"].get(kind, 0) for r in benign)
        pauses = false if kind in HANGS else 0
        wanted = [r for r in faults if CASES[r["case"]].expected[:1] == (kind,)]
        found = sum(r["right_s"] is not None for r in wanted)
        counted = len(told) + false - pauses
        rows.append(
            {
                "reported": kind,
                "incidents": counted,
                "right": right,
                "precision": interval(right, counted),
                "faults": len(wanted),
                "found": found,
                "recall": interval(found, len(wanted)),
                "pauses reported": pauses or "",
            }
        )
    return rows


def _names(run: dict[str, Any], told: dict[str, Any]) -> bool:
    right = run.get("between", [run["rank"]])
    return bool(run["size"] < CASES[run["case"]].names_from or told["ranks"] == right)


def healthy(benign: Results) -> Rows:
    rows: Rows = []
    for kind in dict.fromkeys(r["kind"] for r in benign):
        rows.append(_healthy(kind, [r for r in benign if r["kind"] == kind]))
    rows.append(_healthy("all", benign))
    runs = {r["run"]: max(o["ran_s"] for o in benign if o["run"] == r["run"]) for r in benign}
    rows[-1]["wall h"] = sum(runs.values()) / 3600
    return rows


def _healthy(name: str, mine: Results) -> dict[str, object]:
    steps = sum(r["steps"] for r in mine)
    alarms = sum(n for r in mine for kind, n in r["told"].items() if kind not in HANGS)
    return {
        "kind": name,
        "jobs": len(mine),
        "job h": sum(r["ran_s"] for r in mine) / 3600,
        "steps": steps,
        "pauses": sum(r["pauses"] for r in mine),
        "steered": sum(r["disturbed"] for r in mine),
        "restarts": sum(r["restarts"] for r in mine),
        "pauses reported": sum(n for r in mine for kind, n in r["told"].items() if kind in HANGS),
        "false alarms": alarms,
        "per 1,000 steps": 1000 * alarms / max(1, steps),
        "kinds": " ".join(sorted({k for r in mine for k in r["told"]} - HANGS)) or "–",
    }


def healthy_peers(benign: Results) -> Rows:
    steps = sum(r["steps"] for r in benign)
    rows: Rows = []
    for rule in PEERS:
        alarms = sum(r["peers"].get(rule, 0) for r in benign)
        rows.append({"rule": rule, "alarms": alarms, "per 1,000 steps": 1000 * alarms / max(1, steps)})
    return rows


def _newest(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """A benign job is written down again and again; the last word counts."""
    return list({(r["run"], r["job"]): r for r in results}.values())


def _p95(ordered: Sequence[float]) -> float | None:
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))] if ordered else None
