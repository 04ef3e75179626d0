"""Command typed → first completed step: torchloom beside torchrun, interleaved; and when `loom up` answers.

    python bench/start.py [--runs 5] [--cold-only] [--json]

Beside them: one process that imports torch, forks two ranks and lets them join and step, watched by nobody
(workloads/by_hand.py); and how long `loom ps` takes while a job runs.

Also prints when each process began and the CPU time it had used by the first step, and the phases of the
start. `--cold-only` leaves out what needs a running service: about 20 s per run on a quiet machine.

"from nothing": no daemon runs, `loom run` starts everything and ends it again. "up": `loom up` runs already
and its spawner is warm.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

from support import start_phases
from support.begun import Begun, boot_s, of_home, of_launcher, table
from support.launchers import (
    BIN,
    Notes,
    by_hand_command,
    environment,
    loom_command,
    loom_up,
    process,
    torchrun,
    torchrun_command,
    wait_for,
)
from support.table import emit, progress, spread

LIMIT = "by hand (plain imports)"


def first_step(notes: Notes, typed_ns: int) -> float:
    if not wait_for(lambda: notes.first_step_ns(but=set()) is not None, 120):
        raise SystemExit("the job did not step within 120 s")
    first = notes.first_step_ns(but=set())
    assert first is not None
    return (first - typed_ns) / 1e9


def with_torchrun(seen: list[list[Begun]]) -> float:
    notes = Notes()
    try:
        typed_s, typed_ns = boot_s(), time.monotonic_ns()
        with torchrun(torchrun_command(notes), notes) as launcher:
            seconds = first_step(notes, typed_ns)
            seen.append(of_launcher(launcher.pid, {pid for pid, *_ in notes.steps()}, typed_s))
        return seconds
    finally:
        notes.remove()


def from_nothing(seen: list[list[Begun]], phases: list[start_phases.Phases]) -> float:
    notes, home = Notes(), tempfile.mkdtemp(prefix="loom-bench-home-")
    env = environment(LOOM_HOME=home)
    try:
        typed_s, typed_ns = boot_s(), time.monotonic_ns()
        with process(loom_command("run", notes), env) as child:
            seconds = first_step(notes, typed_ns)
            seen.append(of_home(home, child.pid, {pid for pid, *_ in notes.steps()}, typed_s))
            spawner = next((one.after_s for one in seen[-1] if one.name == "spawner"), 0.0)
            warming = start_phases.of_spawner(home, typed_ns)
            worker = start_phases.of_worker(notes, typed_ns)
            phases.append({"`loom run` until the spawner begins": spawner, **warming, **worker})
            child.send_signal(signal.SIGINT)
            child.wait(60)
        return seconds
    finally:
        subprocess.run([BIN / "loom", "down", "--stop-jobs"], env=env, check=False, capture_output=True)
        notes.remove()
        shutil.rmtree(home, ignore_errors=True)


def by_hand() -> float:
    """One import without our shortcuts, two forks, a join and a step."""
    notes = Notes()
    try:
        typed_ns = time.monotonic_ns()
        with process(by_hand_command(notes), environment()):
            return first_step(notes, typed_ns)
    finally:
        notes.remove()


def ps(env: dict[str, str]) -> float:
    typed = time.monotonic()
    subprocess.run([BIN / "loom", "ps"], env=env, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - typed


def with_up(env: dict[str, str]) -> float:
    notes = Notes()
    try:
        typed_ns = time.monotonic_ns()
        with process(loom_command("run", notes), env) as child:
            seconds = first_step(notes, typed_ns)
            child.send_signal(signal.SIGINT)
            child.wait(60)
        return seconds
    finally:
        notes.remove()


def up_answers() -> float:
    home = tempfile.mkdtemp(prefix="loom-bench-home-")
    env = environment(LOOM_HOME=home)
    try:
        typed = time.monotonic()
        subprocess.run([BIN / "loom", "up", "--port", "0"], env=env, check=True, stdout=subprocess.DEVNULL)
        return time.monotonic() - typed
    finally:
        subprocess.run([BIN / "loom", "down", "--stop-jobs"], env=env, check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


def warm(env: dict[str, str]) -> None:
    """Wait until a job steps: then the spawner is warm, and stays so."""
    with_up(env)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cold-only", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    os.environ.pop("LOOM_HOME", None)

    seen: dict[str, list[float]] = {
        "torchrun": [],
        "loom run, from nothing": [],
        "loom run, up": [],
        "loom up": [],
        LIMIT: [],
        "loom ps": [],
    }
    theirs: list[list[Begun]] = []
    ours: list[list[Begun]] = []
    phases: list[start_phases.Phases] = []
    with contextlib.suppress(KeyboardInterrupt):  # what was measured until then is printed
        for run in range(args.runs):
            seen["torchrun"].append(with_torchrun(theirs))
            seen["loom run, from nothing"].append(from_nothing(ours, phases))
            seen[LIMIT].append(by_hand())
            if not args.cold_only:
                seen["loom up"].append(up_answers())
                with loom_up() as env:
                    warm(env)
                    seen["loom run, up"].append(with_up(env))
                    seen["loom ps"] += [ps(env) for _ in range(3)]
            progress(f"run {run + 1}: " + ", ".join(f"{k} {v[-1]:.2f} s" for k, v in seen.items() if v))
    if not all(seen[what] for what in ("torchrun", "loom run, from nothing", LIMIT)):
        raise SystemExit("interrupted before the first run was over: nothing was measured")

    rows = [{"what": what, **spread(values)} for what, values in seen.items() if values]
    peer = float(rows[0]["median_s"])
    notes = [
        f"{row['what']}: {peer / float(row['median_s']):.1f} × as fast as torchrun at the median"
        for row in rows[1:]
        if row["what"] not in ("loom up", "loom ps")
    ]
    ours_s, hand_s = (statistics.median(seen[what]) for what in ("loom run, from nothing", LIMIT))
    notes.append(
        f"loom run, from nothing: {ours_s - hand_s:+.2f} s beside the same by hand, which is "
        f"{peer / hand_s:.1f} × as fast as torchrun"
    )
    emit(
        "start: which process began when, and its CPU time until the first step", table(theirs), [], args.json
    )
    emit("the same for `loom run` from nothing", table(ours), [], args.json)
    emit("phases of `loom run` from nothing, one after another", start_phases.table(phases), [], args.json)
    emit(
        "start: command typed → first completed step (`loom up`, `loom ps`: → it answers)",
        rows,
        notes,
        args.json,
    )


if __name__ == "__main__":
    main()
