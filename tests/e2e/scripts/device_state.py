"""DDP on the simulated accelerator with loom.Checkpoint: device_state.py NOTES STORE.

Every rank appends `<generation> <rank> <step> <drawn> <loss>` for every step. What is drawn comes from
the device's own generator, so a resumed run repeats it only if that generator was restored.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torchloom as loom
from torchloom.chaos import accelerator

notes_path, store = sys.argv[1:3]
torch.set_num_threads(1)
accelerator.load()
dist.init_process_group("loomsim")
rank = dist.get_rank()
torch.manual_seed(1)
generator = torch.loomsim.default_generators[0].manual_seed(7 + rank)
model = DistributedDataParallel(torch.nn.Linear(8, 8).to("loomsim"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
ckpt = loom.Checkpoint(model=model, optimizer=optimizer, every=1000, dir=store, memory=False)
step = ckpt.restore()
with open(notes_path, "a", buffering=1) as notes:
    while True:
        step += 1
        batch = torch.rand(4, 8, generator=generator)
        optimizer.zero_grad()
        loss = model(batch.to("loomsim")).pow(2).mean()
        accelerator.busy(5)
        loss.backward()
        optimizer.step()
        drawn = f"{batch.sum().item():.9f} {loss.item():.9f}"
        notes.write(f"{os.environ['LOOM_GENERATION']} {rank} {step} {drawn}\n")
        ckpt.step(step)
        time.sleep(0.02)
