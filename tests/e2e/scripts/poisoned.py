"""Trains on data of which one sample makes the loss NaN, and notes what every step was made of.

poisoned.py OUT     one line a step and rank: training step, dataset indices, loss
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import torchloom as loom

POISONED = 7
"""Index of the sample; where it comes in the order is the seed's affair."""

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inner = torch.nn.Linear(4, 1)
model = torch.nn.parallel.DistributedDataParallel(inner)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(40_000, 4, generator=torch.Generator().manual_seed(1))
data[POISONED] = float("nan")
# A seed with which the sample comes in step 29.
loader = loom.ElasticLoader(list(data), global_batch=16, seed=int(sys.argv[2]))
out = (Path(sys.argv[1]) / f"rank{rank}").open("a", buffering=1)
with loom.Checkpoint(model=inner, optimizer=optimizer, data=loader, every=5) as checkpoint:
    step = checkpoint.restore()
    for batch in loader:
        step += 1
        optimizer.zero_grad()
        loss = model(batch).pow(2).mean() * loader.weight
        loss.backward()
        optimizer.step()
        told = loss.detach().clone()
        dist.all_reduce(told)
        out.write(f"{step} {sorted(loader.indices())} {float(told)}\n")
        loom.log(loss=told)
        time.sleep(0.03)
        step = checkpoint.step(step)
