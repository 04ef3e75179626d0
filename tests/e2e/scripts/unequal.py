"""Trains for some seconds in a way that keeps replicas equal, or not, on purpose; all of it is healthy.

unequal.py ddp|local|warm-local|fsdp|zero|join SECONDS
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

mode, seconds = sys.argv[1], float(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
if mode == "fsdp":
    from torch.distributed.fsdp import fully_shard

    model: torch.nn.Module = fully_shard(net, mesh=dist.init_device_mesh("cpu", (world,)))
else:
    model = net if mode.endswith("local") else DistributedDataParallel(net)
if mode == "zero":
    from torch.distributed.optim import ZeroRedundancyOptimizer

    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(rank)
made = 0


def step() -> None:
    global made
    made += 1
    optimizer.zero_grad()
    model(torch.randn(8, 16)).pow(2).mean().backward()
    optimizer.step()
    if (mode == "local" and made % 10 == 0) or (mode == "warm-local" and (made <= 400 or made % 37 == 0)):
        for parameter in net.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= world
    time.sleep(0.01)


end = time.monotonic() + seconds
if mode == "join":
    from torch.distributed.algorithms.join import Join

    for _ in range(5):
        with Join([model]):
            for _ in range(60 + 20 * rank):
                step()
else:
    over = torch.zeros(1)
    while not over.item():
        for _ in range(50):
            step()
        over.fill_(float(time.monotonic() > end))
        dist.broadcast(over, 0)
