"""Trains on batches whose samples take a while each, on a slow rank longer, and notes what steps are made of.

shared_batch.py OUT     OUT/pace holds "RANK FACTOR", which may change; OUT/rank<n> gets one line a step:
                        training step, dataset indices, loss of the whole batch, time

In double precision, so that shares change the order of summation and nothing else.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import torchloom as loom

SAMPLES, BATCH, SAMPLE_S = 40_000, 32, 0.01

out = Path(sys.argv[1])
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inner = torch.nn.Linear(4, 1)
model = torch.nn.parallel.DistributedDataParallel(inner)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1))
loader = loom.ElasticLoader(list(data), global_batch=BATCH, seed=7)
notes = (out / f"rank{rank}").open("a", buffering=1)
with loom.Checkpoint(model=inner, optimizer=optimizer, data=loader, every=20) as checkpoint:
    step = checkpoint.restore()
    for batch in loader:
        step += 1
        slow, _, factor = (out / "pace").read_text().partition(" ")
        time.sleep(len(batch) * SAMPLE_S * (float(factor) if rank == int(slow) else 1.0))
        optimizer.zero_grad()
        loss = (model(batch) - 1.0).pow(2).mean() * loader.weight
        loss.backward()
        optimizer.step()
        whole = loss.detach() / dist.get_world_size()
        dist.all_reduce(whole)
        notes.write(f"{step} {loader.indices()} {float(whole)!r} {time.monotonic()}\n")
        step = checkpoint.step(step)
