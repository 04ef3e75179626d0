"""Trains three steps under DDP and saves at the last; restored there, it prints what each rank has.

last_step.py DIR store|memory      prints `trained`, or `restored` and `rolled back`, and digests of all ranks

Each rank's batch norm has seen its own samples in the last step, and nothing makes them equal after it: DDP
hands out rank 0's buffers when the next forward begins.
"""

import hashlib
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torchloom as loom

directory = sys.argv[1]
if sys.argv[2] == "memory":
    os.environ["LOOM_MEMORY_DIR"] = f"{directory}/memory"
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
frozen = torch.nn.Linear(8, 4)
frozen.requires_grad_(False)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), frozen)
DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["2.weight", "2.bias"])
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)


def show(what: str) -> None:
    total = hashlib.sha256()
    for _, tensor in sorted(net.state_dict().items()):
        total.update(tensor.numpy().tobytes())
    everyone: list[object] = [None] * world
    dist.all_gather_object(everyone, total.hexdigest()[:16])
    if rank == 0:
        print(what, *everyone, flush=True)


with loom.Checkpoint(model=model, optimizer=optimizer, dir=directory, name="job", every=1000) as ckpt:
    first = ckpt.restore()
    if first:
        show("restored")
        net[1].reset_running_stats()
        frozen.weight.zero_()
        ckpt.roll_back(first)
        show("rolled back")
    else:
        for step in (1, 2, 3):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).pow(2).mean().backward()
            optimizer.step()
            ckpt.step(step)
        ckpt.save(3, wait=True)
        show("trained")
dist.destroy_process_group()
