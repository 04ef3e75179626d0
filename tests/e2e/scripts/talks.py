"""A DDP job that prints a long line at every step. Notes every step in a file as `<pid> <rank> <step>`.

Usage: talks.py NOTES END    ends, on all ranks after the same step, when the file END is there
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

notes_file, end = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with open(notes_file, "a", buffering=1) as notes:
    step = 0
    while True:
        step += 1
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"{os.getpid()} says {step} {'x' * 400}", flush=True)
        notes.write(f"{os.getpid()} {rank} {step}\n")
        time.sleep(0.02)
        over = torch.tensor(float(os.path.exists(end)))
        dist.all_reduce(over)
        if over.item():
            break
dist.destroy_process_group()
