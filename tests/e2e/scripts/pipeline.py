"""Three stages that send activations on and gradients back, without any collective.

Usage: pipeline.py NOTES FAULT [--at STEP]. Notes every completed step as `<pid> <rank> <step>`. FAULT: none,
or left-out (rank 0 leaves out one send, in the first generation only).
"""

import argparse
import os
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("notes")
parser.add_argument("fault")
parser.add_argument("--at", type=int, default=40)
args = parser.parse_args()

dist.init_process_group("gloo")
rank, last = dist.get_rank(), dist.get_world_size() - 1
first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.001)
step = 0
with open(args.notes, "a", buffering=1) as notes:
    while True:
        step += 1
        for _ in range(2):
            x = torch.ones(4, 8)
            if rank > 0:
                dist.recv(x, rank - 1)
            y = layer(x.requires_grad_())
            time.sleep(0.005)
            forgets = args.fault == "left-out" and first_life and rank == 0 and step == args.at
            if rank < last and not forgets:
                dist.send(y.detach(), rank + 1)
            gradient = torch.ones(4, 8)
            if rank < last:
                dist.recv(gradient, rank + 1)
            y.backward(gradient)
            if rank > 0:
                dist.send(x.grad, rank - 1)
        optimizer.step()
        optimizer.zero_grad()
        notes.write(f"{os.getpid()} {rank} {step}\n")
