"""A DDP job that notes what its optimizer really used: `<pid> <rank> <step> <lr>` for every step.

Usage: values.py NOTES [--step-ms M] [--steps N]
"""

import argparse
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("notes")
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--step-ms", type=float, default=10)
args = parser.parse_args()


class Noting(torch.optim.SGD):
    """Inside of its step it has what counts."""

    used = 0.0

    def step(self, closure: Any = None) -> Any:
        self.used = self.param_groups[0]["lr"]
        return super().step(closure)


if int(os.environ["WORLD_SIZE"]) > 1:
    dist.init_process_group("gloo")
model: Any = torch.nn.Linear(8, 8)
if dist.is_initialized():
    model = DistributedDataParallel(model)
optimizer = Noting(model.parameters(), lr=0.1)
rank = os.environ["RANK"]
with open(args.notes, "a", buffering=1) as notes:
    for step in range(1, args.steps + 1):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        notes.write(f"{os.getpid()} {rank} {step} {optimizer.used}\n")
        time.sleep(args.step_ms / 1000)
