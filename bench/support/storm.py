"""A thousand changes of a job while everything around it is killed at random and the machine is busy.

Workers, agent, weaver and NATS get SIGKILL at times that a seed fixes; burners take the processors away in
turns. Every change must end in a told outcome, and every step that any rank noted must have used exactly what
follows from the outcomes (support/verdict.py).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from support.launchers import WORKLOADS
from support.steering import PARTS, Cluster, ask, cluster, connect, outcome
from support.table import progress
from support.verdict import judge, read_notes

NAMES = ("lr", "weight_decay", "dial")
BEGIN = (0.1, 0.0, 0.0)
WORKERS = 3
STEP_MS = 20.0
KILL_AFTER_S = (0.2, 4.0)
"""So long after the first reported outcome since the last kill …"""
KILL_ANYWAY_S = 60.0
"""… or so long after the last kill: what comes back slowly is killed while it does, too."""
STEPS_BETWEEN_WORKER_KILLS = 30
"""A worker is killed only when its generation has made progress, as a restart without any is delayed."""
MOST_OPEN = 32
"""Changes that wait for their outcome: while there are so many, no further one is asked for."""
AGAIN_S = 1.0
"""Dozens wait for outcomes: if all knocked all the time, a weaver that comes back could not start."""
BURN = """import time
while True:
    end = time.time() + 2
    while time.time() < end:
        pass
    time.sleep(2)
"""


def wanted(number: int, chance: random.Random) -> dict[str, float]:
    """The values of one change: each number is used once, of every ten one raises on some rank."""
    kind = chance.random()
    if kind < 0.5:
        return {"lr": 0.2 + number / 1e5}
    if kind < 0.7:
        return {"lr": 0.2 + number / 1e5, "weight_decay": number / 1e7}
    if kind < 0.9:
        return {"dial": float(number)}
    return {"dial": number + 0.5}


class Killer(threading.Thread):
    """Kills something every few seconds, until it is stopped."""

    def __init__(self, made: Cluster, notes: Path, seed: int) -> None:
        super().__init__(daemon=True)
        self.made = made
        self.notes = notes
        self.chance = random.Random(seed)
        self.enough = threading.Event()
        self.told = threading.Event()
        """Set with every outcome."""
        self.killed: Counter[str] = Counter()
        self._spared = -1
        """The generation in which a worker was killed already."""

    def run(self) -> None:
        while not self.enough.is_set():
            self.told.clear()
            self.told.wait(KILL_ANYWAY_S)
            if self.enough.wait(self.chance.uniform(*KILL_AFTER_S)):
                return
            part = self.chance.choice(("worker", *PARTS))
            rank = self.chance.randrange(WORKERS)
            if part != "worker":
                self.made.kill(part)
            elif not self._kill_worker(rank):
                continue
            self.killed[part] += 1

    def _kill_worker(self, rank: int) -> bool:
        found = [tuple(map(int, path.name.split("."))) for path in self.notes.iterdir()]
        newest = max((generation for generation, _, _ in found), default=0)
        pids = {r: pid for generation, r, pid in found if generation == newest}
        if newest == self._spared or rank not in pids:
            return False
        file = self.notes / f"{newest}.{rank}.{pids[rank]}"
        if file.read_text().count("\n") < STEPS_BETWEEN_WORKER_KILLS:
            return False
        self._spared = newest
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[rank], signal.SIGKILL)
        return True


@contextlib.contextmanager
def burners(count: int) -> Iterator[None]:
    started = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def storm(changes: int, rate: float, seed: int, within_s: float = 120.0) -> dict[str, object]:
    """`changes` at most `rate` a second. Outcomes may take `within_s` after the last was asked for."""
    chance = random.Random(seed)
    with cluster() as made, burners(os.cpu_count() or 2):
        notes = made.root / "notes"
        notes.mkdir()
        script = [str(WORKLOADS / "stormed.py"), str(notes), "--step-ms", str(STEP_MS)]
        flags = ["--nproc-per-node", str(WORKERS), "--max-restarts", "100000"]
        job = made.loom("submit", *flags, *script).split()[-1]
        while min(map(_lines, notes.iterdir()), default=0) < 20 or len(list(notes.iterdir())) < WORKERS:
            time.sleep(0.1)
        killer = Killer(made, notes, seed)
        killer.start()
        began = time.monotonic()
        asked: list[Future[dict[str, Any]]] = []
        pool, room = ThreadPoolExecutor(MOST_OPEN), threading.Semaphore(MOST_OPEN)
        for number in range(1, changes + 1):
            if not room.acquire(timeout=within_s):
                break  # no operation ends any more: those requested so far have no outcome
            future = pool.submit(_follow, made, job, wanted(number, chance), f"storm-{number}")
            future.add_done_callback(lambda _: killer.told.set())
            future.add_done_callback(lambda _: room.release())
            asked.append(future)
            if number % 50 == 0:
                progress(f"{number} changes requested, {sum(f.done() for f in asked)} with an outcome")
            time.sleep(1 / rate)
        killer.enough.set()
        killer.join()
        told, untold = [], 0
        until = time.monotonic() + within_s
        for future in asked:
            try:
                told.append(future.result(max(0.0, until - time.monotonic())))
            except TimeoutError:
                untold += 1
        took_s = time.monotonic() - began
        pool.shutdown(wait=False, cancel_futures=True)
        time.sleep(1.0)
        found = judge(read_notes(notes), NAMES, BEGIN, told)
        for line in (found.apart + found.contradicted)[:20]:
            progress(line)
        states = Counter(str(operation["state"]) for operation in told)
        return {
            "what": f"storm of {changes}",
            "applied": states["applied"],
            "not applied": states["not applied"],
            "no outcome": untold,
            "ranks differ": len(found.apart),
            "contradicted": len(found.contradicted),
            "steps": found.steps,
            "generations": found.generations,
            "killed": ", ".join(f"{n} {part}" for part, n in sorted(killer.killed.items())),
            "took_s": round(took_s),
        }


def _lines(path: Path) -> int:
    return path.read_text().count("\n")


def _follow(made: Cluster, job: str, values: dict[str, float], key: str) -> dict[str, Any]:
    with connect(made) as client:
        return outcome(client, job, ask(client, job, values, key, AGAIN_S), AGAIN_S)
