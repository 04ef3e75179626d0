"""A DDP job with steps of a given length that notes what was used, in one file per process.

Usage: steered.py NOTES --step-ms M [--busy]

Lines are `<rank> <step> <lr> <monotonic ns> <ns of CPU so far>`. With --busy a step computes for about so
long, the same number of products on every rank; else it sleeps.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("notes")
parser.add_argument("--step-ms", type=float, default=50)
parser.add_argument("--busy", action="store_true")
args = parser.parse_args()


class Noting(torch.optim.SGD):
    """Inside of its step it has what counts."""

    used = 0.0

    def step(self, closure: Any = None) -> Any:
        self.used = self.param_groups[0]["lr"]
        return super().step(closure)


def products() -> int:
    """How many products take a step's time here, by the fastest of a few tries; every rank does as many."""
    if not args.busy:
        return 0
    took = []
    for _ in range(50):
        began = time.process_time()
        torch.mm(matrix, matrix)
        took.append(time.process_time() - began)
    count = torch.tensor([args.step_ms / 1000 / min(took)])
    dist.broadcast(count, 0)
    return max(1, int(count))


dist.init_process_group("gloo")
matrix = torch.eye(256)
work = products()
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = Noting(model.parameters(), lr=0.1)
rank, step = dist.get_rank(), 0
with open(Path(args.notes) / str(os.getpid()), "w", buffering=1) as notes:
    while True:
        began = time.monotonic()
        for _ in range(work):
            torch.mm(matrix, matrix)
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        cpu_ns = time.process_time_ns()
        notes.write(f"{rank} {step} {optimizer.used} {time.monotonic_ns()} {cpu_ns}\n")
        if not args.busy:
            time.sleep(max(0.0, args.step_ms / 1000 - (time.monotonic() - began)))
