"""How late an agent's event loop is while states are copied on a host whose cores are all busy.

    python bench/copy_delay.py [--mb 200] [--seconds 5] [--rounds 3] [--json]

Two processes stand for two agents: each has an event loop that wants to run every 10 ms, and copies of a
state go from one to the other without pause, at a low priority. One process for each core does nothing but
work. `none` copies nothing; `threads` copies on threads of the two processes; `processes` copies in two
others, as agents do (agent/neighbour/copy_process.py). The three in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from support.slot_copies import Pair
from support.table import emit
from torchloom.agent.neighbour import slot_transfer
from torchloom.agent.neighbour.channel import NeighbourFailed, answer, call, greet
from torchloom.agent.neighbour.slot_transfer import SendingPace

TICK_S = 0.01
NICE = 10
WAYS = ("none", "threads", "processes")
fork = multiprocessing.get_context("fork")


def burn() -> None:
    while True:
        sum(range(10_000))


def copy(pair: Pair, sends: bool, over: Any) -> int:
    """Copies until it is over; how many."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
    done = 0
    while not over.is_set():
        try:
            if sends:
                with call("127.0.0.1", pair.port, "job", pair.key) as channel:
                    slot_transfer.send(channel, pair.slot, SendingPace(0), lambda: not over.is_set())
            else:
                connection = pair.listening.accept()[0]
                with answer(connection, greet(connection)[1], pair.key) as channel:
                    facts = pair.slot.header
                    slot_transfer.receive(channel, pair.copy, facts.whole, facts.save, lambda: True)
            done += 1
        except (NeighbourFailed, OSError):
            time.sleep(0.01)  # the other one has ended in the middle
    return done


async def tick(seconds: float) -> list[float]:
    """How late the loop was, each time."""
    found = []
    until = time.monotonic() + seconds
    while (now := time.monotonic()) < until:
        await asyncio.sleep(TICK_S)
        found.append(time.monotonic() - now - TICK_S)
    return found


def agent(pair: Pair, sends: bool, way: str, seconds: float, answers: Connection) -> None:
    over: Any = fork.Event() if way == "processes" else threading.Event()
    kind: Any = {"threads": threading.Thread, "processes": fork.Process}.get(way)
    worker = kind(target=copy, args=(pair, sends, over), daemon=True) if kind is not None else None
    if worker is not None:
        worker.start()
    late = asyncio.run(tick(seconds))
    over.set()
    answers.send(late)
    if way == "processes":
        worker.kill()
        worker.join()
    os._exit(0)


def measure(pair: Pair, way: str, seconds: float) -> dict[str, list[float]]:
    found = {}
    for role, sends in (("sender", True), ("receiver", False)):
        mine, theirs = fork.Pipe()
        process = fork.Process(target=agent, args=(pair, sends, way, seconds, theirs))
        process.start()
        found[role] = (process, mine)
    late = {role: connection.recv() for role, (_, connection) in found.items()}
    for process, _ in found.values():
        process.join()
    return late


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="loom-bench-", dir="/dev/shm"))
    burners = [fork.Process(target=burn, daemon=True) for _ in range(os.cpu_count() or 1)]
    late: dict[tuple[str, str], list[float]] = {}
    try:
        pair = Pair(folder, args.mb)
        for one in burners:
            one.start()
        for _ in range(args.rounds):
            for way in WAYS:
                for role, found in measure(pair, way, args.seconds).items():
                    late.setdefault((way, role), []).extend(found)
    finally:
        for one in burners:
            one.kill()
        shutil.rmtree(folder, ignore_errors=True)
    rows = []
    for (way, role), found in late.items():
        found.sort()
        parts = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "max_ms": 1.0}
        ms = {name: round(1e3 * found[int(part * (len(found) - 1))], 1) for name, part in parts.items()}
        rows.append({"copies": way, "agent": role, "ticks": len(found), **ms})
    notes = [f"{args.rounds} × {args.seconds:g} s each, in turn"]
    emit("copy_delay: how late the event loop is", rows, notes, args.json)


if __name__ == "__main__":
    main()
