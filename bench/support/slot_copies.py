"""What sending a state from one agent to another takes of both, beside the least that it could take."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from torchloom.agent.neighbour import slot_transfer
from torchloom.agent.neighbour.channel import CHUNK, answer, call, greet
from torchloom.agent.neighbour.slot_transfer import KeptSlot, SendingPace
from torchloom.checkpoint.memory import tier
from torchloom.checkpoint.memory.slots import SlotFile
from torchloom.checkpoint.store.names import CheckpointName

_GB = 1e9


class Pair:
    """Two ends on loopback and a slot in shared memory."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        path = tier.file(folder, tier.own(0), 0)
        file = SlotFile(path)
        file.prepare(megabytes * 1_000_000).tensor.random_()
        file.seal(CheckpointName(1, 1), 2, "s.1")
        (self.slot,) = slot_transfer.slots([path])
        self.copy = tier.copy(folder, 0, 0)
        self.key = secrets.token_bytes(32)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listening.getsockname()[1])


def _agents_send(pair: Pair) -> float:
    with call("127.0.0.1", pair.port, "job", pair.key) as channel:
        began = time.thread_time()
        slot_transfer.send(channel, pair.slot, SendingPace(0), lambda: True)
        return time.thread_time() - began


def _agents_take(pair: Pair) -> float:
    connection = pair.listening.accept()[0]
    with answer(connection, greet(connection)[1], pair.key) as channel:
        began = time.thread_time()
        slot_transfer.receive(channel, pair.copy, pair.slot.header.whole, pair.slot.header.save, lambda: True)
        return time.thread_time() - began


def _plain_send(pair: Pair) -> float:
    slot: KeptSlot = pair.slot
    with socket.create_connection(("127.0.0.1", pair.port)) as sock, slot.path.open("rb") as file:
        began, at = time.thread_time(), 0
        while at < slot.header.whole:
            at += os.sendfile(sock.fileno(), file.fileno(), at, CHUNK)
        return time.thread_time() - began


def _plain_take(pair: Pair) -> float:
    connection = pair.listening.accept()[0]
    with connection, pair.copy.open("r+b") as file:
        began, at, buffer = time.thread_time(), 0, memoryview(bytearray(CHUNK))
        while count := connection.recv_into(buffer):
            at += os.pwrite(file.fileno(), buffer[:count], at)
        return time.thread_time() - began


_WAYS: dict[str, tuple[Callable[[Pair], float], Callable[[Pair], float]]] = {
    "agents (encrypted, checked)": (_agents_send, _agents_take),
    "sendfile and recv_into": (_plain_send, _plain_take),
}


def cost_of_copies(megabytes: int, runs: int) -> list[dict[str, Any]]:
    """CPU seconds a GB of both sides; medians, the ways in turn, into memory that is there."""
    folder = Path(tempfile.mkdtemp(prefix="loom-bench-", dir="/dev/shm"))
    took: dict[str, list[tuple[float, float, float]]] = {way: [] for way in _WAYS}
    try:
        pair = Pair(folder, megabytes)
        _once(pair, _agents_send, _agents_take)  # makes the pages
        for _ in range(runs):
            for way, (send, take) in _WAYS.items():
                took[way].append(_once(pair, send, take))
        pair.listening.close()
        gigabytes = pair.slot.header.whole / _GB
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    keys = ("sender_cpu_s_gb", "receiver_cpu_s_gb", "wall_s_gb")
    return [
        {"way": way}
        | {key: round(median(row[n] for row in rows) / gigabytes, 3) for n, key in enumerate(keys)}
        for way, rows in took.items()
    ]


def _once(
    pair: Pair, send: Callable[[Pair], float], take: Callable[[Pair], float]
) -> tuple[float, float, float]:
    taken: list[float] = []
    thread = threading.Thread(target=lambda: taken.append(take(pair)))
    thread.start()
    began = time.perf_counter()
    sent = send(pair)
    thread.join()
    return sent, taken[0], time.perf_counter() - began
