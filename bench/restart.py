"""SIGKILL one of two workers → first completed step afterwards: torchloom beside torchrun, interleaved.

    python bench/restart.py [--runs 10] [--json]

Every run is a job of its own: start, at least 30 steps, SIGKILL of rank 1, wait for the first step of a new
process (at most 180 s; a run that does not come back is counted, not timed), end. Also with a script that
imports for 2 s by itself, with and without --preload; and with Hugging Face's Trainer and Lightning, whose
imports torchloom learns from the first run of the job (the kill comes when that is done).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from support.launchers import BIN, Notes, loom_command, loom_up, torchrun, torchrun_command, wait_for
from support.table import emit, progress, spread

GIVE_UP_S = 180.0
FRAMEWORKS = "framework_steps.py"


def kill_and_time(notes: Notes) -> float | None:
    """Kill rank 1 once the job steps; seconds to the first step of a new process, None if it never came."""
    if not wait_for(lambda: notes.most_steps() >= 30, 300):
        return None
    (victim,) = notes.pids(rank=1)
    before = {pid for pid, *_ in notes.steps()}
    killed_ns = time.monotonic_ns()
    os.kill(victim, signal.SIGKILL)
    if not wait_for(lambda: notes.first_step_ns(but=before) is not None, GIVE_UP_S):
        return None
    first = notes.first_step_ns(but=before)
    assert first is not None
    return (first - killed_ns) / 1e9


def under_torchrun(*script_args: str) -> float | None:
    notes = Notes()
    try:
        with torchrun(torchrun_command(notes, *script_args), notes):
            return kill_and_time(notes)
    finally:
        notes.remove()


def under_loom(env: dict[str, str], *script_args: str, flags: tuple[str, ...] = ()) -> float | None:
    notes = Notes()
    command = loom_command("submit", notes, *script_args, flags=flags)
    job = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
    try:
        return kill_and_time(notes)
    finally:
        subprocess.run([BIN / "loom", "stop", "--kill", job], env=env, check=False, stdout=subprocess.DEVNULL)
        notes.remove()


def framework_under_torchrun(framework: str) -> float | None:
    notes = Notes()
    try:
        with torchrun(torchrun_command(notes, framework, script=FRAMEWORKS), notes):
            return kill_and_time(notes)
    finally:
        notes.remove()


def framework_under_loom(framework: str, learn: bool) -> float | None:
    """In a service of its own, so that nothing is known of the job before its first run."""
    notes = Notes()
    with loom_up() as env:
        env = env | ({} if learn else {"LOOM_LEARN_IMPORTS": "0"})
        command = loom_command("submit", notes, framework, script=FRAMEWORKS)
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        log = Path(env["LOOM_HOME"]) / "logs" / "agent.log"
        if learn and not wait_for(lambda: "modules of its job" in log.read_text(), 180):
            return None
        try:
            return kill_and_time(notes)
        finally:
            notes.remove()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--import-runs", type=int, default=3)
    parser.add_argument("--framework-runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    with contextlib.ExitStack() as stack:
        env = stack.enter_context(loom_up())
        preload = ("--preload", "slow_import")
        cases: list[tuple[str, str, int, Callable[[], float | None]]] = [
            ("plain", "torchrun", args.runs, under_torchrun),
            ("plain", "torchloom", args.runs, lambda: under_loom(env)),
            ("2 s imports", "torchrun", args.import_runs, lambda: under_torchrun("--imports")),
            ("2 s imports", "torchloom", args.import_runs, lambda: under_loom(env, "--imports")),
            (
                "2 s imports",
                "torchloom --preload",
                args.import_runs,
                lambda: under_loom(env, "--imports", flags=preload),
            ),
        ]
        for name in ("transformers", "lightning"):
            runs = args.framework_runs
            cases += [
                (name, "torchrun", runs, partial(framework_under_torchrun, name)),
                (name, "torchloom, not learned", runs, partial(framework_under_loom, name, False)),
                (name, "torchloom", runs, partial(framework_under_loom, name, True)),
            ]
        seen: dict[tuple[str, str], list[float | None]] = {(c[0], c[1]): [] for c in cases}
        for run in range(max(args.runs, args.import_runs, args.framework_runs)):
            for script, launcher, runs, measure in cases:
                if run < runs:
                    seconds = measure()
                    seen[script, launcher].append(seconds)
                    told = "never came back" if seconds is None else f"{seconds:.3f} s"
                    progress(f"run {run + 1}: {script}, {launcher}: {told}")

    rows, medians = [], {}
    for (script, launcher), values in seen.items():
        came = [v for v in values if v is not None]
        row = spread(came)
        medians[script, launcher] = row["median_s"]
        rows.append(
            {"script": script, "launcher": launcher, "recovered": f"{len(came)}/{len(values)}", **row}
        )
    notes = []
    for (script, launcher), median in medians.items():
        peer = medians.get((script, "torchrun"))
        if launcher != "torchrun" and median and peer:
            notes.append(f"{script}: {launcher} is {peer / median:.1f} × faster than torchrun at the median")
    emit("restart: SIGKILL of one of two workers → first completed step", rows, notes, args.json)


if __name__ == "__main__":
    main()
