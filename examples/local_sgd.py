"""LocalSGD: every rank trains by itself and all average their weights every `sync_every` steps.

    loom run --nproc-per-node 2 examples/local_sgd.py
    loom set JOB sync_every=32          # talk less
    loom set JOB outer_lr=0.7 lr=0.02   # move only part of the way to the average, faster on the way

The ranks drift apart between two averages, so it matters that all of them take a change over at one step: a
rank that averaged at another step than its peers would wait for them for ever. `loom set` sees to that.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

import torchloom as loom

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 2000

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
synced = [p.detach().clone() for p in model.parameters()]

# Read where they are used; changed from outside, before one and the same step on all ranks.
sync_every = loom.setting("sync_every", 8, minimum=1, description="steps between two averages")
outer_lr = loom.setting("outer_lr", 1.0, minimum=0.0, description="share of the way to the average")


def average() -> None:
    """Everybody moves towards the average of all, from where they last agreed."""
    with torch.no_grad():
        for p, before in zip(model.parameters(), synced, strict=True):
            mean = p.clone()
            dist.all_reduce(mean)
            before.lerp_(mean / world, outer_lr.value)
            p.copy_(before)


generator = torch.Generator().manual_seed(1 + rank)  # every rank has data of its own
teacher = torch.linspace(-1, 1, 16)
since = 0
for step in range(1, STEPS + 1):
    x = torch.randn(32, 16, generator=generator)
    loss = (model(x).squeeze(1) - torch.tanh(x @ teacher)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # a change takes hold here
    since += 1
    if since >= sync_every.value:
        average()
        since = 0
    loom.step(step, total=STEPS)
    loom.log(loss=loss.item(), sync_every=sync_every.value)

average()
if rank == 0:
    print(f"{STEPS} steps, loss {loss.item():.4f}, averaged every {sync_every.value} steps at the end")
if os.environ.get("WEIGHTS"):  # for whoever wants to compare
    torch.save(model.state_dict(), f"{os.environ['WEIGHTS']}.{rank}")
dist.destroy_process_group()
