"""A training with torchloom's own loader: batch size and transforms are settings. Logs what it was fed."""

import json
import os

import torch
import torch.distributed as dist

import torchloom as loom

dist.init_process_group("gloo")
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.arange(100_000.0).unsqueeze(1)
transforms = loom.Transforms(double=lambda x: x * 2, negate=lambda x: -x, active=["double"])
loader = loom.ElasticLoader(data, global_batch=8, transforms=transforms, num_workers=0)
log = open(os.environ["VALUES"], "a", buffering=1)  # noqa: SIM115 – for the whole life of the process
for count, batch in enumerate(loader, 1):
    optimizer.zero_grad()
    model(batch / 1e5).square().mean().backward()
    optimizer.step()
    dist.all_reduce(torch.ones(1))
    line = {"step": count, "size": len(batch), "negative": bool((batch < 0).any()), "used": {}}
    log.write(json.dumps(line) + "\n")
