"""A DDP job that notes what every step used: `<step> <lr> <weight_decay> <dial>`, one file per process.

Usage: stormed.py NOTES --step-ms M

The files are named `<generation>.<rank>.<pid>`. `dial` is a setting with a handler: it raises for a value
that ends in .5, on the rank that the rest of it names, so that the change must be taken back everywhere.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torchloom as loom

parser = argparse.ArgumentParser()
parser.add_argument("notes")
parser.add_argument("--step-ms", type=float, default=20)
args = parser.parse_args()


class Noting(torch.optim.SGD):
    """Inside of its step it has what counts."""

    used = (0.0, 0.0)

    def step(self, closure: Any = None) -> Any:
        group = self.param_groups[0]
        self.used = (group["lr"], group["weight_decay"])
        return super().step(closure)


dist.init_process_group("gloo")
rank, world, dial = dist.get_rank(), dist.get_world_size(), 0.0


@loom.handler("dial", description="anything; n + 0.5 raises on rank n modulo the number of ranks")
def turn(value: float = 0.0) -> None:
    global dial
    if value % 1 == 0.5 and int(value) % world == rank:
        raise ValueError(f"the dial does not go to {value}")
    dial = value


model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = Noting(model.parameters(), lr=0.1)
name = f"{os.environ['LOOM_GENERATION']}.{rank}.{os.getpid()}"
with open(Path(args.notes) / name, "w", buffering=1) as notes:
    step = 0
    while True:
        began = time.monotonic()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        lr, decay = optimizer.used
        notes.write(f"{step} {lr!r} {decay!r} {dial!r}\n")
        time.sleep(max(0.0, args.step_ms / 1000 - (time.monotonic() - began)))
