"""A DDP job with steps of a given length that notes what was used: `<rank> <step> <lr> <monotonic ns>`.

Usage: steered.py NOTES --step-ms M
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
args = parser.parse_args()


class Noting(torch.optim.SGD):
    """Inside of its step it has what counts."""

    used = 0.0

    def step(self, closure: Any = None) -> Any:
        self.used = self.param_groups[0]["lr"]
        return super().step(closure)


dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = Noting(model.parameters(), lr=0.1)
rank, step = dist.get_rank(), 0
with open(Path(args.notes) / str(os.getpid()), "w", buffering=1) as notes:
    while True:
        began = time.monotonic()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        notes.write(f"{rank} {step} {optimizer.used} {time.monotonic_ns()}\n")
        time.sleep(max(0.0, args.step_ms / 1000 - (time.monotonic() - began)))
