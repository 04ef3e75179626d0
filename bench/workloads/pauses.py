"""Long operations of a healthy rank that it does not announce. Each takes about as long as requested."""

import gc
import os
import tempfile
import time

import torch
from torch.utils.data import DataLoader, Dataset


def evaluate(seconds: float) -> None:
    """On the CPU, with much waiting in between."""
    until = time.monotonic() + seconds
    small = torch.nn.Linear(32, 32)
    with torch.no_grad():
        while time.monotonic() < until:
            small(torch.ones(64, 32))
            time.sleep(0.05)


def save(seconds: float) -> None:
    until = time.monotonic() + seconds
    state = torch.nn.Linear(256, 256).state_dict()
    with tempfile.NamedTemporaryFile() as file:
        while time.monotonic() < until:
            file.seek(0)
            torch.save(state, file)
            os.fsync(file.fileno())
            time.sleep(0.1)


def slow_read(seconds: float) -> None:
    """A read that blocks: of a pipe into which somebody writes late."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        time.sleep(seconds)
        os.write(writing, b"x")
        os._exit(0)
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
    os.wait()


def recompile(seconds: float) -> None:
    """Much Python, no progress."""
    until = time.monotonic() + seconds
    source = "\n".join(f"x{i} = {i}" for i in range(500))
    while time.monotonic() < until:
        compile(source, "graph", "exec")
        time.sleep(0.02)


def collect(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        gc.collect()
        time.sleep(0.2)


class _Late(Dataset):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        time.sleep(self._seconds)
        return index


def late_batch(seconds: float) -> None:
    """A loader with a process of its own that takes its time."""
    for _ in DataLoader(_Late(seconds), num_workers=1):
        pass


KINDS = (evaluate, save, slow_read, recompile, collect, late_batch)
