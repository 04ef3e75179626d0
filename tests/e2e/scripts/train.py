"""A plain DDP job that knows nothing of torchloom. Notes every completed step as `<pid> <rank> <step>`.

Usage: train.py NOTES [--steps N] [--step-ms M] [--end FILE]
                [--crash-at N --crash-rank R --crash-how exit|raise]

With --end it ends, on all ranks after the same step, when there is that file. Notes have a fourth word with
--clock: when the step was over, in seconds.
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
parser.add_argument("--end", default="")
parser.add_argument("--clock", action="store_true")
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
        when = f" {time.monotonic()}" if args.clock else ""
        notes.write(f"{os.getpid()} {rank} {step}{when}\n")
        time.sleep(args.step_ms / 1000)
        if args.end:
            over = torch.tensor(float(os.path.exists(args.end)))
            dist.all_reduce(over)
            if over.item():
                break
dist.destroy_process_group()
