"""A DDP job on the simulated accelerator that goes wrong in one way on one rank, in its first generation.

    on_device.py NOTES FAULT [--at STEP] [--rank R] [--ahead STEPS] [--busy MS] [--slow FACTOR]

Notes every step that the host has completed as `<pid> <rank> <step>`. The host runs ahead of its device by
--ahead steps. FAULT: none; kill and stop: a signal to itself; loop: the host never comes; sync: a kernel is
stuck and the host waits for it in .item(); kernel: a kernel is stuck and the host runs on; communication: a
collective that all have reached does not end; lost: the device fell off the bus and the host does not notice;
slow: the rank's kernels take longer by a factor; launch: its host launches late. size: it reduces more than
the others; another: it gathers where they reduce. Harmless, for 20 s: long: a kernel; eval: its host and its
device evaluate; save: its host writes a file with pauses; suspend: somebody stops all ranks.
"""

import argparse
import os
import signal
import tempfile
import time
from collections import deque

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torchloom.chaos import accelerator

parser = argparse.ArgumentParser()
parser.add_argument("notes")
parser.add_argument("fault")
parser.add_argument("--at", type=int, default=40)
parser.add_argument("--rank", type=int, default=1)
parser.add_argument("--ahead", type=int, default=10)
parser.add_argument("--busy", type=float, default=20)
parser.add_argument("--slow", type=float, default=2)
args = parser.parse_args()
torch.set_num_threads(1)
accelerator.load()
dist.init_process_group("loomsim")
rank = dist.get_rank()
first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
faulty = rank == args.rank and first_life
HARMLESS_S = 20.0
model = DistributedDataParallel(torch.nn.Linear(8, 8).to("loomsim"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
launched: deque[torch.Event] = deque()
batch = torch.ones(4, 8, device="loomsim")


def tokenize() -> None:
    """Where the host is while its device has nothing to do."""
    time.sleep(10**6)


def read_loss(loss: torch.Tensor) -> float:
    """Where the host waits for its device."""
    return loss.item()


def evaluate() -> None:
    until = time.monotonic() + HARMLESS_S
    with torch.no_grad():
        while time.monotonic() < until:
            accelerator.busy(args.busy)
            model.module(batch).sum().item()


def save() -> None:
    until = time.monotonic() + HARMLESS_S
    with tempfile.NamedTemporaryFile() as file:
        while time.monotonic() < until:
            file.write(os.urandom(1 << 16))
            os.fsync(file.fileno())
            time.sleep(1)


def suspend() -> None:
    """Somebody outside the job lets it continue, one rank after the other."""
    me = os.getpid()
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            time.sleep(HARMLESS_S + 2 * rank)
            os.kill(me, signal.SIGCONT)
        os._exit(0)
    os.wait()
    os.kill(me, signal.SIGSTOP)


def differ(mine: bool) -> None:
    """Ranks that do not agree about an operation."""
    if args.fault == "size":
        dist.all_reduce(torch.ones(16 if mine else 8, device="loomsim"))
    elif mine:
        dist.all_gather([torch.ones(8, device="loomsim") for _ in range(dist.get_world_size())], batch[0])
    else:
        dist.all_reduce(torch.ones(8, device="loomsim"))


def keep_up() -> None:
    """Not further ahead than that."""
    mark = torch.Event("loomsim")
    mark.record()
    launched.append(mark)
    while len(launched) > args.ahead:
        launched.popleft().synchronize()


step = 0
with open(args.notes, "a", buffering=1) as notes:
    while True:
        step += 1
        hit = faulty and step >= args.at
        if hit and step == args.at and args.fault in ("kill", "stop"):
            os.kill(os.getpid(), signal.SIGKILL if args.fault == "kill" else signal.SIGSTOP)
        if hit and step == args.at and args.fault == "loop":
            tokenize()
        if hit and step == args.at and args.fault in ("sync", "kernel"):
            accelerator.stick()
        if hit and step == args.at and args.fault == "communication":
            accelerator.stall()
        if hit and step == args.at and args.fault in ("eval", "save"):
            {"eval": evaluate, "save": save}[args.fault]()
        if hit and step == args.at and args.fault == "long":
            accelerator.busy(1000 * HARMLESS_S)
        if first_life and step == args.at and args.fault == "suspend":
            suspend()
        if first_life and step == args.at and args.fault in ("size", "another"):
            differ(faulty)
        loss = model(batch).pow(2).mean()
        if hit and step == args.at and args.fault == "sync":
            read_loss(loss)
        if hit and args.fault == "launch":
            torch.accelerator.synchronize()
            time.sleep(2 * args.busy / 1000)
        accelerator.busy(args.busy * (args.slow if hit and args.fault == "slow" else 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        notes.write(f"{os.getpid()} {rank} {step}\n")
        if hit and args.fault == "lost":
            accelerator.lose()
            tokenize()
        keep_up()
