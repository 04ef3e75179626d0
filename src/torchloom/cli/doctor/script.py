"""The program of the self-test: data-parallel training of a small layer until it is ended.

    script.py --device cpu|cuda|loomsim|… [--late-ms 15]

The last rank takes a little longer for every step, so that the others wait for it.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument("--late-ms", type=float, default=15.0)
parser.add_argument("--step-ms", type=float, default=25.0)
args = parser.parse_args()
torch.set_num_threads(1)
if args.device == "loomsim":
    from torchloom.chaos import accelerator

    accelerator.load()
device = torch.device(args.device)
if device.type not in ("cpu", "loomsim"):
    device = torch.device(device.type, int(os.environ["LOCAL_RANK"]))
    getattr(torch, device.type).set_device(device.index)
backend = "loomsim" if device.type == "loomsim" else dist.get_default_backend_for_device(device.type)
dist.init_process_group(backend)
late = dist.get_world_size() > 1 and dist.get_rank() == dist.get_world_size() - 1
model = DistributedDataParallel(torch.nn.Linear(64, 64).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.ones(8, 64, device=device)
while True:
    time.sleep((args.step_ms + args.late_ms * late) / 1000)
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()
