"""Detection on real jobs: what is injected against what is told, beside the rules of peers and torchrun.

    python bench/detect.py [--runs 3] [--sizes 2,4,8] [--faults kill,stop,…] [--benign-minutes 5] [--json]

Every run is a real gloo job under a real `loom up`, hurt by `loom inject` on a rank and with a number from a
seed that was not used for tuning (`--tuning` takes those). The truth is the injection, what counts is the
first incident of the right kind that blames the right rank. The rules of peers look at the same windows.
Benign jobs pause without a word, have batches of different lengths and too many processes for the cores; a
restart there is the worst that can happen. `--torchrun S` stops a worker under torchrun and waits S seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.launchers import BIN, WORKLOADS, Notes, loom_up, torchrun, torchrun_command, wait_for
from support.peers import PEERS, interval
from support.table import emit, progress
from torchloom.bus.embedded import EmbeddedNats
from torchloom.bus.nats import NatsBus
from torchloom.bus.protocol import Message
from torchloom.cli.plan import node_name
from torchloom.client import Client, Endpoint
from torchloom.home import Home
from torchloom.model.windows import RankWindow
from torchloom.wire import codec, subjects

REPORTING, TUNING = 7_000_000, 0
HANGS = frozenset({"hang", "communication-hang", "no-progress"})


@dataclass(frozen=True)
class Case:
    """A fault to inject, and what should be told of it."""

    name: str
    fault: str
    expected: frozenset[str]
    amounts: tuple[float, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)
    horizon_s: float = 30.0
    names_a_rank: bool = True
    everybody: bool = False


CASES = {
    case.name: case
    for case in (
        Case("kill", "kill", frozenset({"crash"})),
        Case("exit", "exit", frozenset({"crash"}), (1, 17)),
        Case("stop", "stop", frozenset({"hang"})),
        Case("hang", "hang", frozenset({"hang"})),
        Case("hang-data", "hang", frozenset({"hang"}), more={"where": "data"}),
        Case("hang-backward", "hang", frozenset({"hang"}), more={"where": "backward"}),
        Case("gil-hold", "gil-hold", frozenset({"hang"})),
        Case("mismatch", "mismatch", frozenset({"desync"})),
        Case("skip", "skip", frozenset({"desync", "hang"})),
        Case("deadlock", "deadlock", frozenset({"ordering-deadlock"}), names_a_rank=False, everybody=True),
        Case("slow", "slow", frozenset({"compute-slow"}), (1.3, 1.5, 2.0, 3.0), horizon_s=60),
        Case("data-slow", "data-slow", frozenset({"data-slow"}), (10, 20, 40), horizon_s=60),
        Case("contention", "contention", frozenset({"host-contention"}), (2, 4), horizon_s=60),
        Case("nan", "nan", frozenset({"not-a-number"}), names_a_rank=False),
        Case("gradient", "gradient", frozenset({"spike"}), (1e4,), names_a_rank=False, everybody=True),
        Case("bit-flip", "bit-flip", frozenset({"divergence"}), names_a_rank=False),
    )
}


class Watcher:
    """Keeps the newest windows of a job and asks the rules of peers once a second."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.windows: dict[int, RankWindow] = {}
        self.steps: dict[int, dict[int, Any]] = {}
        self.first: dict[str, tuple[float, tuple[int, ...]]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._follow()), daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def begin(self) -> None:
        self.windows, self.steps, self.first = {}, {}, {}

    async def _follow(self) -> None:
        bus = await NatsBus.connect(
            EmbeddedNats(self._home.nats_dir, node_name()).address("weaver"), name="bench-detect"
        )
        await bus.subscribe(subjects.WINDOWS, self._hear)
        while not self._stop.is_set():
            await asyncio.sleep(1.0)
            windows = [self.windows[rank] for rank in sorted(self.windows)]
            for name, rule in PEERS.items():
                if windows and name not in self.first and (said := rule(windows)) is not None:
                    self.first[name] = time.time(), said[1]
        await bus.close()

    async def _hear(self, message: Message) -> None:
        for found in codec.decode_window_batch(message.data).windows:
            window = found.window
            self.windows[window.rank] = window


@dataclass
class Result:
    """One run."""

    case: str
    size: int
    rank: int
    told: list[str] = field(default_factory=list)
    """Kinds of all incidents, in their order."""
    delay_s: float | None = None
    step_s: float = 0.0
    right_rank: bool = False
    sentence: str = ""
    restarts: int = 0
    peers: dict[str, tuple[float, tuple[int, ...]]] = field(default_factory=dict)


def submit(client: Client, size: int, *args: str) -> str:
    made = client.submit(
        {
            "program": {"kind": "script", "target": str(WORKLOADS / "watched.py"), "args": list(args)},
            "cwd": str(Path.cwd()),
            "world_size": size,
            "env": {"OMP_NUM_THREADS": "1"},
        }
    )
    return made["job"]


def trained(client: Client, job: str, steps: int) -> bool:
    view = client.job(job)
    done = [worker["steps"] or 0 for worker in view["workers"]]
    return view["state"] == "running" and bool(done) and min(done) >= steps


def run(client: Client, watcher: Watcher, case: Case, size: int, seed: int, step_ms: float) -> Result:
    chance = random.Random(f"{case.name} {size} {seed}")
    rank = chance.randrange(size)
    result = Result(case.name, size, rank)
    job = submit(client, size, "--step-ms", str(step_ms), "--seed", str(seed))
    try:
        if not wait_for(lambda: trained(client, job, 60 + chance.randrange(20)), 120):
            progress(f"  {job} did not get going")
            return result
        watcher.begin()
        before = {incident["id"] for incident in client.incidents(job=job)}
        result.step_s = statistics.median(w["step_s"] or 0.0 for w in client.job(job)["workers"])
        began = time.time()
        wanted: Any = {
            "kind": case.fault,
            "ranks": [] if case.everybody else [rank],
            "amount": chance.choice(case.amounts) if case.amounts else None,
            "seed": seed,
            **case.more,
        }
        client.inject(job, wanted)
        until = time.monotonic() + case.horizon_s
        while time.monotonic() < until and result.delay_s is None:
            time.sleep(0.1)
            for incident in client.incidents(job=job):
                if incident["id"] in before:
                    continue
                if incident["kind"] not in result.told:
                    result.told.append(incident["kind"])
                named = not case.names_a_rank or incident["culprit"] == rank
                if incident["kind"] in case.expected and named and result.delay_s is None:
                    result.delay_s = max(0.0, incident["timeline"]["detected_ns"] / 1e9 - began)
                    result.right_rank, result.sentence = True, incident["verdict"]
        result.restarts = client.job(job)["restarts"]
        result.peers = {name: (at - began, ranks) for name, (at, ranks) in watcher.first.items()}
    finally:
        client.stop(job, {"kill": True, "grace_s": None})
        wait_for(lambda: client.job(job)["ended"], 30)
    return result


def summary(results: Sequence[Result]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name in dict.fromkeys(r.case for r in results):
        for size in sorted({r.size for r in results if r.case == name}):
            mine = [r for r in results if r.case == name and r.size == size]
            hits = [r for r in mine if r.delay_s is not None]
            delays = sorted(r.delay_s for r in hits if r.delay_s is not None)
            steps = [r.delay_s / r.step_s for r in hits if r.delay_s is not None and r.step_s]
            rows.append(
                {
                    "fault": name,
                    "workers": size,
                    "right": f"{len(hits)}/{len(mine)}",
                    "95 %": interval(len(hits), len(mine)),
                    "median s": statistics.median(delays) if delays else None,
                    "p95 s": delays[min(len(delays) - 1, int(0.95 * len(delays)))] if delays else None,
                    "median steps": statistics.median(steps) if steps else None,
                    "also told": " ".join(
                        sorted({k for r in mine for k in r.told} - CASES[name].expected) or ["–"]
                    ),
                    **{peer: f"{sum(peer in r.peers for r in mine)}/{len(mine)}" for peer in PEERS},
                }
            )
    return rows


def confusion(results: Sequence[Result]) -> list[dict[str, object]]:
    """Which fault was told as what, by the first incident of a run."""
    kinds = sorted({r.told[0] for r in results if r.told})
    rows: list[dict[str, object]] = []
    for name in dict.fromkeys(r.case for r in results):
        mine = [r for r in results if r.case == name]
        row: dict[str, object] = {"fault": name}
        for kind in kinds:
            row[kind] = sum(bool(r.told) and r.told[0] == kind for r in mine) or ""
        row["nothing"] = sum(not r.told for r in mine) or ""
        rows.append(row)
    return rows


def benign(client: Client, minutes: float, sizes: Sequence[int], base: int) -> list[dict[str, object]]:
    """Healthy jobs side by side, more processes than cores, until the time is over."""
    jobs = {}
    for number, size in enumerate(sizes):
        flags = ["--pauses", "60", "--seed", str(base + number), "--step-ms", "15"]
        flags += ["--longest", "12"] if number % 2 else ["--lengths"]
        jobs[submit(client, size, *flags)] = size
    until = time.monotonic() + minutes * 60
    while time.monotonic() < until:
        time.sleep(min(30.0, max(0.0, until - time.monotonic())))
        done = {job: max((w["steps"] or 0 for w in client.job(job)["workers"]), default=0) for job in jobs}
        progress(f"  benign: {sum(done.values())} steps")
    rows = []
    for job, size in jobs.items():
        view, told = client.job(job), client.incidents(job=job)
        kinds: dict[str, int] = {}
        for incident in told:
            kinds[incident["kind"]] = kinds.get(incident["kind"], 0) + 1
        steps = max((w["steps"] or 0 for w in view["workers"]), default=0)
        alarms = sum(n for kind, n in kinds.items() if kind not in HANGS)
        rows.append(
            {
                "workers": size,
                "minutes": minutes,
                "steps": steps,
                "restarts": view["restarts"],
                "pauses told": sum(n for kind, n in kinds.items() if kind in HANGS),
                "false alarms": alarms,
                "per 1,000 steps": 1000 * alarms / max(1, steps),
                "kinds": " ".join(f"{k}×{n}" for k, n in sorted(kinds.items())),
            }
        )
        client.stop(job, {"kill": True, "grace_s": None})
    return rows


def under_torchrun(seconds: float) -> list[dict[str, object]]:
    """SIGSTOP a worker and listen to what torchrun says."""
    notes = Notes()
    try:
        with torchrun(torchrun_command(notes), notes):
            wait_for(lambda: notes.most_steps() > 50, 120)
            victim = min(notes.pids(1))
            os.kill(victim, signal.SIGSTOP)
            time.sleep(0.5)
            before = notes.most_steps()
            noticed = wait_for(lambda: len(notes.pids(0)) > 1, seconds)
            stuck = notes.most_steps() == before
    finally:
        notes.remove()
    said = "restarted" if noticed else f"nothing in {seconds:g} s"
    return [{"launcher": "torchrun", "after SIGSTOP": said, "steps go on": not stuck}]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--sizes", default="2,4")
    parser.add_argument("--faults", default=",".join(CASES))
    parser.add_argument("--step-ms", type=float, default=30.0)
    parser.add_argument("--benign-minutes", type=float, default=0.0)
    parser.add_argument("--torchrun", type=float, default=0.0, metavar="S")
    parser.add_argument("--tuning", action="store_true", help="seeds the rules were tuned on")
    parser.add_argument("--verbose", action="store_true", help="print every verdict")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    base = TUNING if args.tuning else REPORTING
    sizes = [int(size) for size in args.sizes.split(",")]
    if args.torchrun:
        emit("detect: torchrun", under_torchrun(args.torchrun), [], args.json)
    with loom_up() as env:
        home = Home(Path(env["LOOM_HOME"]))
        address = subprocess.run(
            [BIN / "loom", "token", "show"], env=env, check=True, capture_output=True, text=True
        )
        os.environ |= {"LOOM_HOME": env["LOOM_HOME"], "LOOM_TOKEN": address.stdout.strip()}
        results = []
        with Client(Endpoint.find()) as client, Watcher(home) as watcher:
            for name in [n for n in args.faults.split(",") if n and args.runs]:
                for size in sizes:
                    for number in range(args.runs):
                        result = run(client, watcher, CASES[name], size, base + number, args.step_ms)
                        results.append(result)
                        shown = "nothing" if result.delay_s is None else f"{result.delay_s:.2f} s"
                        progress(f"{name} ×{size} rank {result.rank}: {shown}, told {result.told}")
                        if args.verbose and result.sentence:
                            progress(f"    {result.sentence}")
            if results:
                notes = ["right: the expected kind, and the rank where one is to blame"]
                notes += ["rules of peers: runs in which they said anything, right or wrong"]
                emit("detect: faults", summary(results), notes, args.json)
                emit("detect: first told", confusion(results), [], args.json)
            if args.benign_minutes:
                rows = benign(client, args.benign_minutes, [2, 2, 4], base)
                emit(
                    "detect: benign",
                    rows,
                    ["a pause that is told is no false alarm"],
                    args.json,
                )


if __name__ == "__main__":
    main()
