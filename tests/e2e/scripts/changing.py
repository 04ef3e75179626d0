"""A training whose batch and transforms are changed from outside: changing.py OUT

OUT/made-<rank> gets `<step> <global batch> <share> <what the transforms made of sample 0 of the share>`.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torchloom as loom

out = Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
transforms = loom.Transforms(plus=lambda s, by=1.0: s + by, times=lambda s: 10 * s, active=["plus"])
loader = loom.ElasticLoader(
    [torch.zeros(1)] * 1000,
    global_batch=8,
    drop_last=True,
    transforms=transforms,
    num_workers=1,
    prefetch_factor=8,
)
step = 0
with open(out / f"made-{rank}", "a", buffering=1) as made:
    while True:
        for batch in loader:
            step += 1
            optimizer.zero_grad()
            (model(batch).mean() * loader.weight).backward()
            optimizer.step()
            portion = loader.portion
            made.write(f"{step} {portion.stop - portion.start} {len(batch)} {float(batch[0]):g}\n")
            loom.step(step)
            time.sleep(0.02)
