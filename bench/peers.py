"""torchloom beside its peers, in one run: torchrun, NVRx, DLRover, Ray Train, torchft, DCP, Flight Recorder,
profiler.

    python bench/peers.py --make                  make the peers' environments, then measure
    python bench/peers.py [--runs 3] [--stop-s 30] [--only launchers,torchft,collectives,saves] [--json]
    python bench/peers.py --runs 5 --render README.md    and put the table into this file, with the newest
                                                         result of every part (build/bench/peers)

One job of two workers for each launcher and run, interleaved: command typed → first step; SIGKILL of rank 1 →
first step of a new process; SIGSTOP of rank 1 → the launcher's output names the rank, or it restarts the job.
All run workloads/ddp_steps.py, with the launchers' defaults and five restarts. A peer without an environment
is left out, with the reason. torchft, recorders and saves are measured by what they are for:
bench/torchft.py, workloads/collective_cost.py, bench/checkpoint.py.

A run takes about 6 min on two cores. No launcher begins after the limit (--within-min), and Ctrl-C ends it:
what was measured until then is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from support import peer_environments
from support.launchers import BIN, WORKLOADS, Notes, environment, loom_command, torchrun_command, wait_for
from support.peer_table import SOME_MB, lines_of
from support.restarts import TRAINED_S
from support.table import Table, progress, put, spread

KEPT = Path(__file__).resolve().parent.parent / "build" / "bench" / "peers"
"""The newest result of each part: `--only` measures one of them again, and `--render` shows all."""
START_S, RECOVER_S = 180.0, 60.0
STEPS_BEFORE = 30
NAMES_RANK_1 = re.compile(r"rank\W{0,3}1\b", re.IGNORECASE)
TORCHRUN_FLAGS = ("--nproc-per-node", "2", "--max-restarts", "5")


@dataclass(frozen=True)
class Launcher:
    name: str
    version: str
    command: Callable[[Notes, Path], list[str]]
    cannot: str
    helper: Callable[[Path, dict[str, str]], list[str]] | None = None
    """A service that must run before; it may set variables for the launcher."""
    absent: str = ""


@dataclass
class Seen:
    start_s: list[float] = field(default_factory=list)
    recover_s: list[float | None] = field(default_factory=list)
    named_s: list[float | None] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)


# -- the launchers ------------------------------------------------------------------------------


def launchers() -> list[Launcher]:
    script = str(WORKLOADS / "ddp_steps.py")
    found = [
        Launcher("torchloom", version("torchloom"), lambda n, _: loom_command("run", n), ""),
        Launcher(
            "torchrun",
            version("torch"),
            lambda n, _: torchrun_command(n),
            "see a hang, name its rank, keep a state, change a running job",
        ),
    ]

    def peer(name: str, shown: str, command: Callable[[Path, Notes, Path], list[str]], cannot: str) -> None:
        place = peer_environments.bin_of(name)
        found.append(
            Launcher(
                shown,
                peer_environments.version(name),
                (lambda n, d: command(place, n, d)) if place else (lambda n, d: []),
                cannot,
                helper=_dlrover_master if name == "dlrover" else None,
                absent="" if place else "no environment: run with --make",
            )
        )

    peer(
        "nvrx",
        "NVRx ft_launcher",
        lambda place, n, _: [
            str(place / "ft_launcher"),
            *TORCHRUN_FLAGS,
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--ignore-missing-fault-tol-cfg"),
            script,
            str(n.directory),
        ],
        "see a hang of a script without its heartbeats (then after minutes), change a running job",
    )
    peer(
        "dlrover",
        "DLRover",
        lambda place, n, _: [
            str(place / "dlrover-run"),
            *("--nnodes", "1", *TORCHRUN_FLAGS),
            script,
            str(n.directory),
        ],
        "name the rank of a hang within minutes, change a running job beyond the batch size",
    )
    peer(
        "ray",
        "Ray Train",
        lambda place, n, d: [
            str(place / "python"),
            str(WORKLOADS / "ray_steps.py"),
            str(n.directory),
            str(d),
        ],
        "run a script unchanged, see a hang, change a running job",
    )
    return found


def _dlrover_master(directory: Path, env: dict[str, str]) -> list[str]:
    """`--standalone` of 0.6.1 fails with torch 2.13, so its master is started beside it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env["DLROVER_MASTER_ADDR"] = f"127.0.0.1:{port}"
    place = peer_environments.bin_of("dlrover")
    assert place is not None
    words = f"--port {port} --node_num 1 --job_name bench --platform local".split()
    return [str(place / "python"), "-u", "-m", "dlrover.python.master.main", *words]


@contextlib.contextmanager
def started(command: list[str], env: dict[str, str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a session of its own; at its end, it and all its descendants are killed."""
    with output.open("ab") as out:
        child = subprocess.Popen(
            command, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, cwd=output.parent
        )
    family: list[psutil.Process] = []
    try:
        yield child
    finally:
        with contextlib.suppress(psutil.Error):
            family = psutil.Process(child.pid).children(recursive=True)
        if "loom" in command[0] and child.poll() is None:
            child.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()  # psutil compares the start time first


# -- one job --------------------------------------------------------------------------------------


def measure(launcher: Launcher, stop_s: float, seen: Seen) -> None:
    notes, directory = Notes(), Path(tempfile.mkdtemp(prefix="loom-bench-peer-"))
    env = environment(LOOM_HOME=str(directory / "home"), RAY_TRAIN_V2_ENABLED="1", RAY_AUTH_MODE="disabled")
    output = directory / "output"
    try:
        with contextlib.ExitStack() as stack:
            typed = time.monotonic_ns()
            if launcher.helper:
                command = launcher.helper(directory, env)
                stack.enter_context(started(command, env, directory / "helper.output"))
            stack.enter_context(started(launcher.command(notes, directory), env, output))
            if not wait_for(lambda: notes.most_steps() >= STEPS_BEFORE, START_S):
                seen.trouble.append(f"no step within {START_S:g} s")
                progress(output.read_text()[-2000:])
                return
            first = notes.first_step_ns(but=set())
            assert first is not None
            seen.start_s.append((first - typed) / 1e9)
            time.sleep(TRAINED_S)
            seen.recover_s.append(killed := _after_kill(notes))
            if killed is not None:
                seen.named_s.append(_after_stop(notes, output, stop_s))
    finally:
        subprocess.run([BIN / "loom", "down", "--stop-jobs"], env=env, check=False, capture_output=True)
        notes.remove()
        shutil.rmtree(directory, ignore_errors=True)


def _after_kill(notes: Notes) -> float | None:
    (victim,) = notes.pids(rank=1)
    before = {pid for pid, *_ in notes.steps()}
    killed_ns = time.monotonic_ns()
    os.kill(victim, signal.SIGKILL)
    if not wait_for(lambda: notes.first_step_ns(but=before) is not None, RECOVER_S):
        return None
    first = notes.first_step_ns(but=before)
    assert first is not None
    return (first - killed_ns) / 1e9


def _after_stop(notes: Notes, output: Path, stop_s: float) -> float | None:
    """Stop the new rank 1 when it has made some steps."""

    def running() -> list[int]:
        made = {pid: step for pid, rank, step, _ in notes.steps() if rank == 1}
        return [pid for pid, step in made.items() if step >= STEPS_BEFORE and psutil.pid_exists(pid)]

    if not wait_for(running, RECOVER_S):
        return None
    time.sleep(
        2.0
    )  # what was learned of the job before it failed is no longer of use: look at it for a while
    victim = psutil.Process(running()[0])
    before = {pid for pid, *_ in notes.steps()}
    read = output.stat().st_size
    stopped = time.monotonic()
    victim.suspend()

    def reacted() -> bool:
        new = output.read_bytes()[read:].decode(errors="replace")
        return bool(NAMES_RANK_1.search(new)) or notes.first_step_ns(but=before) is not None

    try:
        return time.monotonic() - stopped if wait_for(reacted, stop_s) else None
    finally:
        with contextlib.suppress(psutil.Error):
            victim.resume()


def compare(runs: int, stop_s: float, until: float) -> Table:
    known = launchers()
    present = [launcher for launcher in known if not launcher.absent]
    seen = {launcher.name: Seen() for launcher in present}
    with contextlib.suppress(KeyboardInterrupt):
        for run in range(runs):
            for launcher in present:
                if time.monotonic() > until:
                    continue
                progress(f"run {run + 1} of {runs}: {launcher.name}")
                measure(launcher, stop_s, seen[launcher.name])
                newest = seen[launcher.name]
                progress(f"  {newest.start_s[-1:]} {newest.recover_s[-1:]} {newest.named_s[-1:]}")
    rows = [_row(launcher, seen[launcher.name]) for launcher in present]
    notes = [f"{peer.name}: left out, {peer.absent}" for peer in known if peer.absent]
    notes += [f"{name}: {text}" for name, of in seen.items() for text in of.trouble]
    notes.append(
        f"recovered: a step within {RECOVER_S:g} s of the kill; hang: named within {stop_s:g} s of SIGSTOP"
    )
    if time.monotonic() > until:
        notes.append("the limit of time was reached, so some runs are missing")
    return Table("peers: two workers, start, SIGKILL, SIGSTOP", rows, notes)


def _row(launcher: Launcher, seen: Seen) -> dict[str, Any]:
    back, named = [s for s in seen.recover_s if s is not None], [s for s in seen.named_s if s is not None]
    return {
        "launcher": launcher.name,
        "version": launcher.version,
        "n": len(seen.start_s),
        "start_s": spread(seen.start_s)["median_s"],
        "start_worst_s": spread(seen.start_s)["worst_s"],
        "recovered": f"{len(back)} of {len(seen.recover_s)}",
        "recover_s": spread(back)["median_s"],
        "recover_worst_s": spread(back)["worst_s"],
        "hang named": f"{len(named)} of {len(seen.named_s)}",
        "named_s": spread(named)["median_s"],
        "named_worst_s": spread(named)["worst_s"],
        "cannot": launcher.cannot,
    }


# -- recorders and saves -----------------------------------------------------------------------------

RECORDERS = {
    "nothing": ("off", "0"),
    "torchloom": ("torchloom", "0"),
    "Flight Recorder": ("off", "2000"),
    "torch.profiler": ("profiler", "0"),
}


def collectives(runs: int) -> Table:
    taken: dict[str, list[float]] = {name: [] for name in RECORDERS}
    for _ in range(runs):
        for name, (how, buffer) in RECORDERS.items():
            with tempfile.TemporaryDirectory() as directory:
                out = subprocess.run(
                    [sys.executable, str(WORKLOADS / "collective_cost.py"), f"{directory}/store", how],
                    env=environment(TORCH_FR_BUFFER_SIZE=buffer, TORCH_NCCL_TRACE_BUFFER_SIZE=buffer),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            # Its exit status does not count: once a process without any recorder aborted when it ended.
            taken[name].append(float(out.stdout.split()[-1]))
    bare = statistics.median(taken["nothing"])
    rows = [
        {
            "recorder": name,
            "n": runs,
            "µs a call": (mid := statistics.median(values)),
            "extra µs": mid - bare,
            "worst extra µs": max(values) - bare,
        }
        for name, values in taken.items()
    ]
    note = "an all_reduce of 64 bytes by gloo, group of one; CPU time of the training thread, median of runs"
    return Table("peers: what recording costs a collective", rows, [note])


def saves() -> Table:
    """bench/checkpoint.py with one size: blocking time and restore beside DCP and torch.save."""
    return _other("checkpoint", "--mb", str(SOME_MB), "--rounds", "3", "--no-s3")


def torchft(runs: int) -> Table:
    """bench/torchft.py with the release that is installed."""
    if find_spec("torchft") is None:
        return Table("torchft", [], ["torchft: left out, it is not installed"])
    return _other("torchft", "--runs", str(runs), "--releases", "nightly")


def _other(bench: str, *arguments: str) -> Table:
    """What another benchmark prints."""
    command = [sys.executable, str(Path(__file__).with_name(f"{bench}.py")), *arguments, "--json"]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if out.returncode:
        return Table(bench, [], [f"{bench}: left out, bench/{bench}.py ended with {out.returncode}"])
    said = json.loads(out.stdout.splitlines()[-1])
    return Table(said["bench"], said["rows"], said["notes"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--stop-s", type=float, default=30.0, help="how long a stopped rank stays stopped")
    parser.add_argument("--only", default="launchers,torchft,collectives,saves")
    parser.add_argument("--within-min", type=float, default=45.0, help="no launcher begins after this time")
    parser.add_argument("--make", action="store_true", help="make the environments that are missing")
    parser.add_argument("--render", type=Path, metavar="FILE", help="put the table into this page")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    os.environ.pop("LOOM_HOME", None)
    if args.make:
        for name in peer_environments.PINS:
            if peer_environments.bin_of(name) is None:
                progress(f"making the environment of {name} in {peer_environments.PLACE}")
                peer_environments.make(name)
    until = time.monotonic() + 60 * args.within_min
    parts: dict[str, Callable[[], Table]] = {
        "launchers": lambda: compare(args.runs, args.stop_s, until),
        "torchft": lambda: torchft(args.runs),
        "collectives": lambda: collectives(args.runs),
        "saves": saves,
    }
    wanted = [word for word in args.only.split(",") if word]
    if unknown := [word for word in wanted if word not in parts]:
        raise SystemExit(f"--only knows {', '.join(parts)}; not {', '.join(unknown)}.")
    KEPT.mkdir(parents=True, exist_ok=True)
    for word in wanted:
        table = parts[word]()
        table.emit(args.json)
        if table.rows:
            (KEPT / f"{word}.json").write_text(json.dumps(asdict(table), ensure_ascii=False))
    if args.render:
        kept = {path.stem: Table(**json.loads(path.read_text())) for path in KEPT.glob("*.json")}
        put(args.render, "peers", lines_of(kept, version("torch"), version_of_torchft()))


def version_of_torchft() -> str:
    for name in ("torchft-nightly", "torchft"):
        with contextlib.suppress(PackageNotFoundError):
            return f"{name} {version(name)}"
    return ""


if __name__ == "__main__":
    main()
