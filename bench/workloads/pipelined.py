"""A pipeline of as many stages as there are ranks, to try detection on: activations forward, gradients back.

    pipelined.py KIND --rank R [--step-ms 30] [--interleaved]

No rank reports its role, and no collective is made. `--interleaved`: first all forward passes of a step, then
all backward passes, with `batch_isend_irecv`. KIND, from step `AT` on and in the first life only: stop,
two-stopped (R and the next), fifo (opens one that another process opens after 30 s), left-out (a send), slow
(R takes 2 ×), both-slow (all take 1.6 ×, R 2.2 ×). From the start: uneven (R takes 2 ×, it has more layers).
"""

import argparse
import os
import signal
import time

import torch
import torch.distributed as dist
from odd import AT, fifo

parser = argparse.ArgumentParser()
parser.add_argument("kind")
parser.add_argument("--rank", type=int, required=True)
parser.add_argument("--step-ms", type=float, default=30.0)
parser.add_argument("--interleaved", action="store_true")
parser.add_argument("--seed")
args = parser.parse_args()

MICROBATCHES = 4
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
last = world - 1
first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
mine = first_life and rank == args.rank
second = first_life and rank == (args.rank + 1) % world
layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-9)


def compute(step: int) -> None:
    factor = 1.0
    if args.kind == "uneven" and rank == args.rank:
        factor = 2.0
    if first_life and step >= AT + 140:  # what is usual must be known first
        if args.kind == "slow" and mine:
            factor = 2.0
        if args.kind == "both-slow":
            factor = 2.2 if mine else 1.6
    time.sleep(factor * args.step_ms / 1000 / MICROBATCHES / 2)


def forward(step: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.ones(4, 8)
    if rank > 0:
        move("recv", x, rank - 1)
    y = layer(x.requires_grad_())
    compute(step)
    if rank < last and not forgets(step, number):
        move("send", y.detach(), rank + 1)
    return x, y


def forgets(step: int, number: int) -> bool:
    return args.kind == "left-out" and mine and step == AT and number == 0


def backward(step: int, number: int, x: torch.Tensor, y: torch.Tensor) -> None:
    gradient = torch.ones(4, 8)
    if rank < last:
        move("recv", gradient, rank + 1)
    y.backward(gradient)
    compute(step)
    if rank > 0 and not (rank == last and forgets(step, number)):
        assert x.grad is not None
        move("send", x.grad, rank - 1)


def move(what: str, tensor: torch.Tensor, peer: int) -> None:
    if not args.interleaved:
        (dist.send if what == "send" else dist.recv)(tensor, peer)
        return
    operation = dist.P2POp(dist.isend if what == "send" else dist.irecv, tensor, peer)
    for work in dist.batch_isend_irecv([operation]):
        work.wait()


step = 0
while True:
    step += 1
    if step == AT:
        if (args.kind in ("stop", "two-stopped") and mine) or (args.kind == "two-stopped" and second):
            os.kill(os.getpid(), signal.SIGSTOP)
        if args.kind == "fifo" and mine:
            fifo()
    if args.interleaved:
        held = [forward(step, number) for number in range(MICROBATCHES)]
        for number, (x, y) in enumerate(held):
            backward(step, number, x, y)
    else:
        for number in range(MICROBATCHES):
            backward(step, number, *forward(step, number))
    optimizer.step()
    optimizer.zero_grad()
