"""SIGKILL one of several workers → first completed step afterwards: torchloom beside torchrun, interleaved.

    python bench/restart.py [--runs 10] [--only DDP,FSDP2] [--workers 2,4,8] [--within-min 40] [--json]
    python bench/restart.py --short          one run each of DDP, FSDP2, Trainer and Lightning, at most 5 min
    python bench/restart.py --frameworks     three runs each of Trainer and Lightning, at most 14 min

Every run is a job of its own: start, at least 30 steps and 4 s, SIGKILL of rank 1, wait for the first step of
a new process, end. A run that does not come back in time is counted, not timed. Also with a script that
imports for 2 s by itself, with and without --preload; and with Hugging Face's Trainer and Lightning, whose
imports torchloom learns from the first run of the job (the kill comes when that is done).

Beside them the limit: a warm process that kills all ranks and forks new ones by hand. Jobs of 4 and 8 workers
have rows for torchloom and for the limit. Of torchloom's runs the time of each phase, by its own incident.

No run begins after the limit (--within-min), and Ctrl-C ends it: what was measured until then is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from support.launchers import loom_up
from support.restarts import (
    PHASES,
    Limits,
    NotStarted,
    Restarted,
    Workload,
    by_hand,
    learned_under_loom,
    under_loom,
    under_torchrun,
)
from support.table import emit, progress, spread

GIVE_UP_S = 60.0
START_WITHIN_S = 300.0
SHORT_MIN, SHORT_GIVE_UP_S, SHORT_START_WITHIN_S = 5.0, 40.0, 60.0
FRAMEWORKS_MIN, FRAMEWORKS_GIVE_UP_S = 14.0, 90.0
FRAMEWORKS = "framework_steps.py"
PEER, OURS, LIMIT = "torchrun", "torchloom", "by hand (the limit)"
FEWEST = 2


@dataclass(frozen=True)
class Case:
    script: str
    launcher: str
    workers: int
    runs: int
    measure: Callable[[Limits], Restarted]
    short: bool = True
    """Part of --short."""


def cases_of(env: dict[str, str], args: argparse.Namespace) -> list[Case]:
    sizes = [int(size) for size in args.workers.split(",") if size]
    fewest = [size for size in sizes if size == FEWEST]
    found = [*_plain(env, sizes, "DDP", args.runs), *_plain(env, sizes, "FSDP2", args.fsdp2_runs, "--fsdp2")]
    slow = [*_plain(env, fewest, "2 s imports", args.import_runs, "--imports", limit=False)]
    for size in fewest:
        imports = Workload(words=("--imports",), workers=size, flags=("--preload", "slow_import"))
        preloaded = partial(under_loom, env, imports)
        slow.append(Case("2 s imports", f"{OURS} --preload", size, args.import_runs, preloaded))
    found += [replace(case, short=False) for case in slow]
    found += _framework(sizes, "Trainer", "transformers", args.framework_runs)
    found += _framework(sizes, "Lightning", "lightning", args.framework_runs)
    wanted = {word for word in args.only.split(",") if word}
    if args.frameworks:
        wanted = {"Trainer", "Lightning"}
    return [
        replace(case, runs=1 if args.short else case.runs)
        for case in found
        if (case.short or not (args.short or args.frameworks)) and (not wanted or case.script in wanted)
    ]


def _plain(
    env: dict[str, str], sizes: list[int], script: str, runs: int, *words: str, limit: bool = True
) -> list[Case]:
    found = []
    for size in sizes:
        what, least = Workload(words=words, workers=size), size == FEWEST
        found.append(Case(script, OURS, size, runs, partial(under_loom, env, what), least))
        if limit:
            found.append(Case(script, LIMIT, size, runs, partial(by_hand, what), least))
        if least:  # last: it takes the longest, and the time may be up
            found.append(Case(script, PEER, size, runs, partial(under_torchrun, what)))
    return found


def _framework(sizes: list[int], script: str, name: str, runs: int) -> list[Case]:
    found = []
    for size in sizes:
        what, least = Workload(FRAMEWORKS, (name,), size), size == FEWEST
        not_learned = partial(learned_under_loom, what, learn=False)
        learned = partial(learned_under_loom, what, learn=True)
        found.append(Case(script, OURS, size, runs, learned, least))
        found.append(Case(script, LIMIT, size, runs, partial(by_hand, what, learn=True), least))
        if least:
            found.append(Case(script, f"{OURS}, not learned", size, runs, not_learned, short=False))
            found.append(Case(script, PEER, size, runs, partial(under_torchrun, what)))
    return found


def measure_all(cases: list[Case], limits: Limits) -> list[list[Restarted]]:
    """The runs of each case."""
    seen: list[list[Restarted]] = [[] for _ in cases]
    most, began = max((case.runs for case in cases), default=0), time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        for run in range(most):
            for case, mine in zip(cases, seen, strict=True):
                if run >= case.runs or limits.is_over:
                    continue
                what = f"{case.script}, {case.workers} workers, {case.launcher}"
                progress(f"{time.monotonic() - began:5.0f} s: run {run + 1} of {case.runs}: {what}")
                try:
                    one = case.measure(limits)
                except NotStarted:
                    progress("         it did not start in time, so nothing was measured")
                    continue
                if one.seconds is None and limits.is_over:
                    break  # cut short by the limit: it says nothing
                mine.append(one)
                phases = "".join(f", {name} {ms:.0f} ms" for name, ms in one.phases_ms.items())
                taken = "not recovered" if one.seconds is None else f"{one.seconds:.3f} s"
                progress(f"         {taken}{phases}")
    return seen


def row_of(case: Case, runs: list[Restarted]) -> dict[str, object]:
    came = [run.seconds for run in runs if run.seconds is not None]
    row: dict[str, object] = {"script": case.script, "workers": case.workers, "launcher": case.launcher}
    row |= {"recovered": f"{len(came)}/{len(runs)}", **spread(came)}
    for phase in PHASES:
        taken = [run.phases_ms[phase] for run in runs if phase in run.phases_ms]
        row[f"{phase}_ms"] = round(statistics.median(taken)) if taken else ""
    return row


def ratios(rows: list[dict[str, object]], recover_s: float) -> list[str]:
    """What every row of torchloom is beside torchrun and beside the limit."""
    by = {(row["script"], row["workers"], row["launcher"]): row for row in rows}
    notes = []
    for row in rows:
        mine = row["median_s"]
        if not str(row["launcher"]).startswith(OURS) or not isinstance(mine, float):
            continue
        name = f"{row['script']}, {row['workers']} workers, {row['launcher']}"
        peer, limit = (by.get((row["script"], row["workers"], who)) for who in (PEER, LIMIT))
        if peer is not None and isinstance(peer["median_s"], float):
            notes.append(f"{name}: {peer['median_s'] / mine:.1f} × faster than torchrun at the median")
        elif peer is not None and not str(peer["recovered"]).endswith("/0"):
            notes.append(
                f"{name}: torchrun did not come back within {recover_s:g} s, {recover_s / mine:.0f} ×"
            )
        if limit is not None and isinstance(limit["median_s"], float):
            notes.append(f"{name}: {mine - limit['median_s']:+.3f} s beside the limit by hand")
    return notes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--fsdp2-runs", type=int, default=3)
    parser.add_argument("--import-runs", type=int, default=3)
    parser.add_argument("--framework-runs", type=int, default=3)
    parser.add_argument("--only", default="", help="scripts by name, comma-separated")
    parser.add_argument("--workers", default="2,4,8", help="sizes of the jobs, comma-separated")
    parser.add_argument("--within-min", type=float, default=40.0, help="no run begins after this time")
    parser.add_argument("--short", action="store_true", help=f"one run each, at most {SHORT_MIN:g} min")
    parser.add_argument(
        "--frameworks",
        action="store_true",
        help=f"those two only, at most {FRAMEWORKS_MIN:g} min",
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    minutes, start_s, recover_s = args.within_min, START_WITHIN_S, GIVE_UP_S
    if args.frameworks:
        minutes, start_s, recover_s = min(minutes, FRAMEWORKS_MIN), SHORT_START_WITHIN_S, FRAMEWORKS_GIVE_UP_S
    elif args.short:
        minutes, start_s, recover_s = min(minutes, SHORT_MIN), SHORT_START_WITHIN_S, SHORT_GIVE_UP_S
    limits = Limits(start_s, recover_s, time.monotonic() + 60 * minutes)
    with loom_up() as env:
        cases = cases_of(env, args)
        seen = measure_all(cases, limits)
    rows = [row_of(case, runs) for case, runs in zip(cases, seen, strict=True)]
    notes = [
        f"a run that made no step {recover_s:g} s after the kill counts as not recovered",
        "…_ms: medians of the phases: the exit is seen, decided, the others have ended, the new processes "
        "exist, the first step",
        *ratios(rows, recover_s),
    ]
    if limits.is_over:
        notes.append(f"ended after {minutes:g} min, so some runs are missing")
    emit("restart: SIGKILL of one worker → first completed step", rows, notes, args.json)


if __name__ == "__main__":
    main()
