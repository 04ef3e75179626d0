"""A plain DDP job that knows nothing of torchloom. Notes every completed step as `<pid> <rank> <step>`.

Usage: train.py NOTES [--steps N] [--step-ms M] [--crash-at N --crash-rank R --crash-how exit|raise]
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("notes")
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--step-ms", type=float, default=10)
parser.add_argument("--crash-at", type=int, default=0)
parser.add_argument("--crash-rank", type=int, default=1)
parser.add_argument("--crash-how", default="raise")
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print(f"hello from rank {rank}", flush=True)
with open(args.notes, "a", buffering=1) as notes:
    for step in range(1, args.steps + 1):
        model(torch.ones(4, 8)).sum().backward()
        if step == args.crash_at and rank == args.crash_rank:
            if args.crash_how == "raise":
                raise RuntimeError("the flux capacitor is empty")
            sys.exit(17)
        optimizer.step()
        optimizer.zero_grad()
        notes.write(f"{os.getpid()} {rank} {step}\n")
        time.sleep(args.step_ms / 1000)
dist.destroy_process_group()
