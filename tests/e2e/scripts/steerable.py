"""Trains for ever and writes, at every step and for every rank, which values that step was made with.

steerable.py OUT     one file per rank: training step, learning rates, dropout, a sum over the weights
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import torchloom as loom

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
dropout = torch.nn.Dropout(0.1)
inner = torch.nn.Sequential(torch.nn.Linear(8, 8), dropout, torch.nn.Linear(8, 1))
model = torch.nn.parallel.DistributedDataParallel(inner)
groups = [{"params": inner[0].parameters()}, {"params": inner[2].parameters(), "lr": 0.02}]
optimizer = torch.optim.SGD(groups, lr=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9999**step)


@loom.handler("dropout", minimum=0.0, below=1.0)
def set_dropout(p: float = 0.1) -> None:
    """share of units left out"""
    if p == 0.66 and rank == 1:
        raise ValueError("rank 1 cannot do that")
    dropout.p = p


checkpoint = loom.Checkpoint(model=inner, optimizer=optimizer, scheduler=scheduler, every=10_000)
used: list[float] = []
# After the hooks of torchloom, so that it sees what the step is made with.
optimizer.register_step_pre_hook(lambda opt, *_: used.extend(g["lr"] for g in opt.param_groups))
out = (Path(sys.argv[1]) / f"rank{rank}").open("a", buffering=1)
step = checkpoint.restore()
while True:
    step += 1
    loom.step(step)
    optimizer.zero_grad()
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
    scheduler.step()
    total = sum(float(p.sum()) for p in inner.parameters())
    out.write(f"{step} {used} {dropout.p} {total!r}\n")
    used.clear()
    time.sleep(0.02)
    step = checkpoint.step(step)
