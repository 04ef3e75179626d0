"""A new process that restores a state, as after a crash: prints the seconds that takes.

    python bench/support/restored.py MEGABYTES loom|torch|dcp|bound PLACE NAME [--phases]

The model is there, the optimizer has no state yet. What counts is what a script has to call. `bound` reads as
many bytes out of the file NAME, which is in shared memory, into the model and into new memory, on two
threads, and does nothing else. With `--phases` it also prints what our restore spends its time on, and how
the pages of new memory came.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

SIDE = 1024
_POPULATE_WRITE = 23


def build(megabytes: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model and an optimizer whose states take about so many megabytes together."""
    layers = max(1, megabytes * 10**6 // (3 * 4 * SIDE * SIDE))
    model = torch.nn.ModuleList(torch.nn.Linear(SIDE, SIDE, bias=False) for _ in range(layers))
    return model, torch.optim.Adam(model.parameters(), foreach=False)


def restore(kind: str, place: str, name: str, model: Any, optimizer: Any) -> float:
    if kind == "loom":
        import torchloom as loom

        ckpt = loom.Checkpoint(model=model, optimizer=optimizer, every=10**9, dir=place, name=name)
        began = time.perf_counter()
        assert ckpt.restore() > 0
        return time.perf_counter() - began
    if kind == "torch":
        began = time.perf_counter()
        state = torch.load(Path(place) / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return time.perf_counter() - began
    if kind == "bound":
        began = time.perf_counter()
        _read_all(name, model)
        return time.perf_counter() - began
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import _init_optim_state

    began = time.perf_counter()
    _init_optim_state(optimizer)  # what get_state_dict does first: DCP loads only into tensors that are there
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    dcp.load(state, checkpoint_id=place)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return time.perf_counter() - began


def _read_all(path: str, model: Any) -> None:
    """Each parameter, and two tensors like it that are new, from the file: pages are made, then filled."""
    madvise = ctypes.CDLL(None).madvise
    parameters = list(model.parameters())
    threads = torch.get_num_threads()

    def some(first: int) -> list[torch.Tensor]:
        made = []
        for n in range(first, 3 * len(parameters), threads):
            like = parameters[n // 3].detach()
            target = torch.empty_like(like) if n % 3 else like
            memory = (ctypes.c_char * (target.numel() * 4)).from_address(target.data_ptr())
            if n % 3:
                start = target.data_ptr() & -mmap.PAGESIZE
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(len(memory)), _POPULATE_WRITE)
            os.preadv(file.fileno(), [memory], n * len(memory))
            made.append(target)
        return made

    with open(path, "rb", buffering=0) as file, ThreadPoolExecutor(threads) as pool:
        list(pool.map(some, range(threads)))


@contextmanager
def phases() -> Iterator[None]:
    """Print how long each phase of a restore of ours takes, and its faults and large pages."""
    from torchloom.checkpoint.memory.slots import MemoryTier
    from torchloom.checkpoint.restoring.restore import Restorer
    from torchloom.checkpoint.state import filling, streaming

    took: dict[str, float] = {}
    watched: list[tuple[Any, str, str]] = [
        (MemoryTier, "offers", "look into memory"),
        (Restorer, "_choose", "register and choose"),
        (streaming.Streamed, "__init__", "read the index"),
        (filling.Filling, "plan", "plan, make tensors"),
        (streaming.Streamed, "copy_out", "pages, copy, compare"),
        (filling, "_load", "load_state_dict"),
        (filling.Filling, "_read_back", "read back"),
        (Restorer, "_settle", "record the choice"),
    ]
    for owner, attribute, label in watched:
        setattr(owner, attribute, _timed(getattr(owner, attribute), label, took))
    before = _pages()
    yield
    for label, seconds in took.items():
        print(f"{label}: {seconds * 1e3:.1f} ms")
    print(", ".join(f"{name} {count - before[name]}" for name, count in _pages().items()))


def _timed(function: Any, label: str, took: dict[str, float]) -> Any:
    def timed(*args: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **named)
        finally:
            took[label] = took.get(label, 0.0) + time.perf_counter() - began

    return timed


def _pages() -> dict[str, int]:
    """Of the whole machine, so far."""
    wanted = ("pgfault", "thp_fault_alloc")
    lines = (line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return {name: int(count) for name, count in lines if name in wanted}


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--phases"]
    megabytes, kind, place, name = words
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model, optimizer = build(int(megabytes))
    with phases() if len(words) < len(sys.argv) - 1 else nullcontext():
        print(f"restored in {restore(kind, place, name, model, optimizer)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
