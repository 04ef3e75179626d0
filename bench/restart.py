"""SIGKILL one of two workers → first completed step afterwards: torchloom beside torchrun, interleaved.

    python bench/restart.py [--runs 10] [--only DDP,FSDP2] [--within-min 60] [--json]
    python bench/restart.py --short          one run each of DDP, FSDP2, Trainer and Lightning, at most 5 min
    python bench/restart.py --frameworks     three runs each of Trainer and Lightning, at most 14 min

Every run is a job of its own: start, at least 30 steps, SIGKILL of rank 1, wait for the first step of a new
process, end. A run that does not come back in time is counted, not timed. Also with a script that imports
for 2 s by itself, with and without --preload; and with Hugging Face's Trainer and Lightning, whose imports
torchloom learns from the first run of the job (the kill comes when that is done).

No run begins after the limit (--within-min), and Ctrl-C ends it: what was measured until then is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from support.launchers import BIN, Notes, loom_command, loom_up, torchrun, torchrun_command, wait_for
from support.table import emit, progress, spread

GIVE_UP_S = 180.0
START_WITHIN_S = 300.0
SHORT_MIN, SHORT_GIVE_UP_S, SHORT_START_WITHIN_S = 5.0, 40.0, 60.0
FRAMEWORKS_MIN, FRAMEWORKS_GIVE_UP_S = 14.0, 90.0
FRAMEWORKS = "framework_steps.py"
PEER = "torchrun"


@dataclass(frozen=True)
class Limits:
    """Of one run, and of all of them."""

    start_s: float
    recover_s: float
    until: float

    def left(self, seconds: float) -> float:
        return max(0.0, min(seconds, self.until - time.monotonic()))

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until


@dataclass(frozen=True)
class Case:
    script: str
    launcher: str
    runs: int
    measure: Callable[[Limits], float | None]
    short: bool = True
    """Part of --short."""


class NotStarted(Exception):
    """The job did not come to be killed: that says nothing about its recovery."""


def kill_and_time(notes: Notes, limits: Limits) -> float | None:
    """Kill rank 1 once the job steps; seconds to the first step of a new process, None if it never came."""
    if not wait_for(lambda: notes.most_steps() >= 30, limits.left(limits.start_s)):
        raise NotStarted
    (victim,) = notes.pids(rank=1)
    before = {pid for pid, *_ in notes.steps()}
    killed_ns = time.monotonic_ns()
    os.kill(victim, signal.SIGKILL)
    if not wait_for(lambda: notes.first_step_ns(but=before) is not None, limits.left(limits.recover_s)):
        return None
    first = notes.first_step_ns(but=before)
    assert first is not None
    return (first - killed_ns) / 1e9


def under_torchrun(*script_args: str, limits: Limits) -> float | None:
    notes = Notes()
    try:
        with torchrun(torchrun_command(notes, *script_args), notes):
            return kill_and_time(notes, limits)
    finally:
        notes.remove()


def under_loom(
    env: dict[str, str], *script_args: str, limits: Limits, flags: tuple[str, ...] = ()
) -> float | None:
    notes = Notes()
    command = loom_command("submit", notes, *script_args, flags=flags)
    job = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
    try:
        return kill_and_time(notes, limits)
    finally:
        subprocess.run([BIN / "loom", "stop", "--kill", job], env=env, check=False, stdout=subprocess.DEVNULL)
        notes.remove()


def framework_under_torchrun(framework: str, limits: Limits) -> float | None:
    notes = Notes()
    try:
        with torchrun(torchrun_command(notes, framework, script=FRAMEWORKS), notes):
            return kill_and_time(notes, limits)
    finally:
        notes.remove()


def framework_under_loom(framework: str, learn: bool, limits: Limits) -> float | None:
    """In a service of its own, so that nothing is known of the job before its first run."""
    notes = Notes()
    with loom_up() as env:
        env = env | ({} if learn else {"LOOM_LEARN_IMPORTS": "0"})
        command = loom_command("submit", notes, framework, script=FRAMEWORKS)
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        log = Path(env["LOOM_HOME"]) / "logs" / "agent.log"
        if learn and not wait_for(
            lambda: "modules of its job" in log.read_text(), limits.left(limits.start_s)
        ):
            return None
        try:
            return kill_and_time(notes, limits)
        finally:
            notes.remove()


def cases_of(env: dict[str, str], args: argparse.Namespace) -> list[Case]:
    def plain(script: str, runs: int, *words: str) -> list[Case]:
        return [
            Case(script, PEER, runs, lambda limits: under_torchrun(*words, limits=limits)),
            Case(script, "torchloom", runs, lambda limits: under_loom(env, *words, limits=limits)),
        ]

    preload = ("--preload", "slow_import")
    found = [*plain("DDP", args.runs), *plain("FSDP2", args.fsdp2_runs, "--fsdp2")]
    for case in plain("2 s imports", args.import_runs, "--imports"):
        found.append(replace(case, short=False))
    found.append(
        Case(
            "2 s imports",
            "torchloom --preload",
            args.import_runs,
            lambda limits: under_loom(env, "--imports", limits=limits, flags=preload),
            short=False,
        )
    )
    for script, name in (("Trainer", "transformers"), ("Lightning", "lightning")):
        runs = args.framework_runs
        not_learned = partial(framework_under_loom, name, False)
        found += [
            Case(script, PEER, runs, partial(framework_under_torchrun, name)),
            Case(script, "torchloom, not learned", runs, not_learned, short=False),
            Case(script, "torchloom", runs, partial(framework_under_loom, name, True)),
        ]
    wanted = {word for word in args.only.split(",") if word}
    if args.frameworks:
        wanted = {"Trainer", "Lightning"}
    return [
        replace(case, runs=1 if args.short else case.runs)
        for case in found
        if (case.short or not (args.short or args.frameworks)) and (not wanted or case.script in wanted)
    ]


def measure_all(cases: list[Case], limits: Limits) -> dict[tuple[str, str], list[float | None]]:
    seen: dict[tuple[str, str], list[float | None]] = {(c.script, c.launcher): [] for c in cases}
    most, began = max((case.runs for case in cases), default=0), time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        for run in range(most):
            for case in cases:
                if run >= case.runs or limits.is_over:
                    continue
                spent = f"{time.monotonic() - began:5.0f} s"
                progress(f"{spent}: run {run + 1} of {case.runs}: {case.script}, {case.launcher}")
                try:
                    seconds = case.measure(limits)
                except NotStarted:
                    progress("         it did not start in time, so nothing was measured")
                    continue
                if seconds is None and limits.is_over:
                    break  # cut short by the limit: it says nothing
                seen[case.script, case.launcher].append(seconds)
                progress(f"         {'not recovered' if seconds is None else f'{seconds:.3f} s'}")
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--fsdp2-runs", type=int, default=3)
    parser.add_argument("--import-runs", type=int, default=3)
    parser.add_argument("--framework-runs", type=int, default=3)
    parser.add_argument("--only", default="", help="scripts by name, comma-separated")
    parser.add_argument("--within-min", type=float, default=60.0, help="no run begins after this time")
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
        seen = measure_all(cases_of(env, args), limits)

    rows, medians = [], {}
    for (script, launcher), values in seen.items():
        came = [v for v in values if v is not None]
        row = spread(came)
        medians[script, launcher] = row["median_s"]
        rows.append(
            {"script": script, "launcher": launcher, "recovered": f"{len(came)}/{len(values)}", **row}
        )
    notes = [f"a run that made no step {recover_s:g} s after the kill counts as not recovered"]
    for (script, launcher), median in medians.items():
        if launcher == PEER or not median:
            continue
        peer = medians.get((script, PEER))
        if peer:
            notes.append(f"{script}: {launcher} is {peer / median:.1f} × faster than torchrun at the median")
        elif seen.get((script, PEER)):
            least = f"at least {recover_s / median:.1f} × faster"
            notes.append(
                f"{script}: {launcher} is {least}, torchrun did not come back within {recover_s:g} s"
            )
    if limits.is_over:
        notes.append(f"ended after {minutes:g} min, so some runs are missing")
    emit("restart: SIGKILL of one of two workers → first completed step", rows, notes, args.json)


if __name__ == "__main__":
    main()
