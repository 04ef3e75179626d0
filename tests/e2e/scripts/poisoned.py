"""Trains on data of which one sample makes the loss NaN, and notes what every step was made of.

poisoned.py OUT SEED POISONED [SHARDS]     one line a step and rank: training step, dataset indices, loss

POISONED is the index of the sample; where it comes in the order is the seed's affair. With SHARDS the samples
are named by the lines of a ShardedDataset.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import torchloom as loom

seed, poisoned, shards = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inner = torch.nn.Linear(4, 1)
model = torch.nn.parallel.DistributedDataParallel(inner)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(160_000, 4, generator=torch.Generator().manual_seed(1))
data[poisoned] = float("nan")
loader: Any
if shards:
    lines = loom.ShardedDataset(shards[0], seed=seed, transform=lambda line: data[line["id"]])
    loader = lines.loader(16 // dist.get_world_size())
else:
    loader = loom.ElasticLoader(list(data), global_batch=16, seed=seed)
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
