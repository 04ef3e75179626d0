"""A live job of two ranks while somebody writes nonsense wherever a neighbour or a bad byte can get.

Training, the other rank's telemetry and the host's observation must be as without it.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from stack import Stack, lines_of, wait_until
from torch.distributed import TCPStore

from torchloom.spawner.store import COMM
from torchloom.wire import blackbox


def store_port(stack: Stack) -> int:
    """Where the store of the only running job listens. A neighbour finds it by trying."""

    def look() -> int:
        for process in stack.processes():
            with contextlib.suppress(psutil.Error):
                if process.name() == COMM:
                    return next(c.laddr.port for c in process.net_connections("tcp") if c.status == "LISTEN")
        return 0

    return int(wait_until(look, "a store"))


class Neighbour:
    """Writes under torchloom's keys of a live store, again and again, until told to stop."""

    def __init__(self, port: int) -> None:
        self._store: Any = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        self._chance = random.Random(13)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.written = 0
        self.plans = 0
        """How often a plan of a save was replaced."""

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        for version in range(1, 40):  # decisions that are still to come
            for end in ("1", "2", "1/settlement", "1/vote/0", "1/vote/1"):
                self._store.set(f"loom/1/{version}.{end}", self._foreign([b"ABORT"]))
        while not self._over.wait(0.05):
            with contextlib.suppress(RuntimeError):  # a plan that was forgotten meanwhile
                self._round()

    def _round(self) -> None:
        ours = [key for key in self._store.list_keys() if "loom/" in key]
        known = [self._store.get(key) for key in ours[:8]]
        for key in ours:
            self._store.set(key, self._foreign(known))
            self.written += 1
            self.plans += "/plan/" in key
            if "/plan/" in key:  # and what has not been decided yet
                later = re.sub(r"plan/(\d+)", lambda found: f"plan/{int(found[1]) + 3}", key)
                self._store.set(later, self._foreign(known))
                self._store.set(re.sub(r"plan/\d+", "failed/1", key), b"1")

    def _foreign(self, known: list[bytes]) -> bytes:
        value = self._chance.choice(known or [b"x"])
        return self._chance.choice(
            [b"", b"\xff\xfe\x00", b"COMMIT", b"1 1 5 5", value, value[:-1], b"x" * 50_000]
        )


def steps(out: Path, rank: int) -> int:
    lines = lines_of(out / f"rank{rank}")
    return int(lines[-1].split()[0]) if lines else 0


def trains(out: Path, more: int = 30) -> None:
    before = [steps(out, rank) for rank in (0, 1)]
    wait_until(lambda: all(steps(out, r) >= before[r] + more for r in (0, 1)), f"{more} more steps")


def test_nonsense_in_the_store_of_a_live_job_changes_nothing(stack: Stack, tmp_path: Path) -> None:
    job = stack.submit("steerable.py", str(tmp_path), flags=("--max-restarts", "0"))
    stack.wait_state(job, "running")
    trains(tmp_path, 5)
    with Neighbour(store_port(stack)) as neighbour:
        for value in ("0.2", "0.25", "0.3"):
            stack.steer("set", job, f"dropout={value}")
        stack.steer("pause", job)
        stack.steer("resume", job)
        trains(tmp_path)
        wait_until(lambda: neighbour.written > 50 and neighbour.plans, "values under our keys were replaced")
    settled = {line.split("] ")[1].split()[0] for line in lines_of(tmp_path / "rank1")}
    assert {"0.2", "0.25", "0.3"} <= settled, "each change was made on the rank that did not lead as well"
    stack.steer("checkpoint", job)
    trains(tmp_path)
    view = stack.status(job)
    assert (view["state"], view["restarts"]) == ("running", 0), view
    wait_until(lambda: view_metric(stack, job) > 0, "what was ignored is counted")
    wait_until(lambda: stack.faults(job), "an incident says so")
    (incident,) = stack.faults(job)
    assert incident["kind"] == "store-foreign" and not incident["open"], incident
    log = stack.loom("logs", job, "--tail", "2000").stdout
    assert 1 <= log.count("ignored a value in the job's store that no rank of this job wrote") <= 2


def view_metric(stack: Stack, job: str) -> int:
    return max(
        int(w.get("metrics", {}).get("store_values_ignored") or 0) for w in stack.status(job)["workers"]
    )


def boxes_of(stack: Stack, rank: int) -> list[Path]:
    return [path for path in stack.home.boxes.iterdir() if f".r{rank}." in path.name]


def flip(path: Path, chance: random.Random, places: Iterator[int]) -> None:
    """Change single bytes of a file that is in use."""
    with contextlib.suppress(FileNotFoundError), path.open("r+b", buffering=0) as file:
        for place in places:
            file.seek(place)
            old = file.read(1)
            file.seek(place)
            file.write(bytes([(old or b"\0")[0] ^ 1 << chance.randrange(8)]))


def shout(family: int, address: Any, chance: random.Random) -> None:
    """Say nonsense to whoever listens there."""
    for words in (
        chance.randbytes(300),
        b"[" * 200_000 + b"\n",
        b'{"id": 1, "do": []}\n',
        b"\0" * 5000 + b"\n",
    ):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(2)
            connection.connect(address)
            connection.sendall(words)
            while connection.recv(65536):  # until it is refused: a spawner forgets a connection for the next
                pass


def test_bad_bytes_in_one_workers_memory_and_sockets_cost_its_telemetry_at_most(
    stack: Stack, tmp_path: Path
) -> None:
    job = stack.submit("steerable.py", str(tmp_path), flags=("--max-restarts", "0"))
    stack.wait_state(job, "running")
    trains(tmp_path, 5)
    chance = random.Random(29)
    (box,) = boxes_of(stack, 1)
    port = store_port(stack)
    sockets = [path for path in stack.home.sockets.iterdir() if path.is_socket()]
    memory = [
        path for path in Path("/dev/shm").glob(f"loom-{os.getuid()}-{stack.home.tag}*/**/*") if path.is_file()
    ]
    spawners = stack.spawner_pids()
    assert sockets and memory and spawners
    for _ in range(5):
        flip(box, chance, (chance.randrange(blackbox.PROGRESS_AT, blackbox.SIZE) for _ in range(400)))
        for path in memory:
            size = max(1, path.stat().st_size) if path.exists() else 1
            if path.suffix != ".box":
                flip(path, chance, (chance.randrange(size) for _ in range(5)))
        for path in sockets:
            shout(socket.AF_UNIX, str(path), chance)
        shout(socket.AF_INET, ("127.0.0.1", port), chance)
        trains(tmp_path, 10)
    flip(box, chance, iter(range(128)))  # now its header: nothing of this box is to be believed
    trains(tmp_path)

    def step_of_rank_0() -> int:
        return int(next(w for w in stack.status(job)["workers"] if w["rank"] == 0)["steps"])

    seen = step_of_rank_0()
    wait_until(lambda: step_of_rank_0() > seen + 20, "the other rank's steps are still reported")
    view = stack.status(job)
    assert (view["state"], view["restarts"]) == ("running", 0), view
    assert stack.spawner_pids() == spawners, "whoever forks the workers has not ended"
    assert [node["state"] for node in stack.json("nodes")] == ["ready"]
    assert all(psutil.pid_exists(stack.part_pid(part)) for part in ("supervisor", "nats", "weaver", "agent"))
