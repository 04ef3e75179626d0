"""Trains for ever, logs a loss, saves now and then, and prints what a careless page would run."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

import torchloom as loom

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
inner = torch.nn.Linear(8, 1)
model = torch.nn.parallel.DistributedDataParallel(inner)
optimizer = torch.optim.AdamW(inner.parameters(), lr=0.01)
checkpoint = loom.Checkpoint(model=inner, optimizer=optimizer, every=50)
step = checkpoint.restore()
while True:
    if step % 200 == 0:  # again and again: the page shows the newest lines
        print("\x1b[31mred\x1b[0m <img src=x onerror=alert(1)> <script>alert(2)</script>", flush=True)
    step += 1
    loom.step(step, total=1_000_000)
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).pow(2).mean()
    loss.backward()
    optimizer.step()
    loom.log(loss=float(loss))
    if step % 25 == 0:
        print(f"step {step} loss {float(loss):.4f}", flush=True)
    time.sleep(0.02)
    step = checkpoint.step(step)
