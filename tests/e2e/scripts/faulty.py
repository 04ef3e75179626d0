"""A DDP job that goes wrong in one way on one rank, in its first generation only.

Usage: faulty.py NOTES FAULT [--at STEP] [--rank R] [--seconds S]. Notes every completed step as `<pid> <rank>
<step>`. FAULT: none, hang, pause (for S seconds, or until there is NOTES.go), busy (the same, computing)
or semaphore (the same, in a named semaphore that another process posts), late (the same, before
init_process_group), leaves (it exits with code 0), max (it reduces by MAX where
the other reduces by SUM), desync, slow, nan, silent-nan
(gradients are NaN, and no loss is told), oom (it joins the cgroup --cgroup at the start, and takes memory
once there is NOTES.go).
"""

import argparse
import multiprocessing
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torchloom as loom

parser = argparse.ArgumentParser()
parser.add_argument("notes")
parser.add_argument("fault")
parser.add_argument("--at", type=int, default=40)
parser.add_argument("--rank", type=int, default=1)
parser.add_argument("--seconds", type=float, default=10**6)
parser.add_argument("--cgroup")
args = parser.parse_args()


def tokenize() -> None:
    """Where the faulty rank is while the others wait."""
    end = time.monotonic() + args.seconds
    while time.monotonic() < end and not os.path.exists(f"{args.notes}.go"):
        time.sleep(0.2)


def preprocess() -> None:
    """The same, but at work."""
    while not os.path.exists(f"{args.notes}.go"):
        compute(0.05)


def acquire() -> None:
    """Wait for a semaphore that a process outside of the job's sight posts once there is a file NOTES.go."""
    turn = multiprocessing.Semaphore(0)
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            while not os.path.exists(f"{args.notes}.go"):
                time.sleep(0.1)
            turn.release()
        os._exit(0)
    os.wait()
    turn.acquire()


def compute(seconds: float) -> None:
    """Use this much CPU time, however busy the machine is."""
    end = time.thread_time() + seconds
    x = torch.ones(64, 64)
    while time.thread_time() < end:
        x @ x


rank = int(os.environ["RANK"])
faulty = rank == args.rank and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
if faulty and args.fault == "late":
    tokenize()
if faulty and args.fault == "oom":
    with open(f"{args.cgroup}/cgroup.procs", "w") as members:
        members.write(str(os.getpid()))
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
step = 0
with open(args.notes, "a", buffering=1) as notes:
    while True:
        step += 1
        loss = model(torch.ones(4, 8)).pow(2).mean()
        compute(0.01)
        if faulty and step == args.at and args.fault in ("hang", "pause"):
            tokenize()
        if faulty and step == args.at and args.fault == "leaves":
            sys.exit(0)
        if args.fault == "max":
            dist.all_reduce(
                torch.ones(1), dist.ReduceOp.MAX if faulty and step > args.at else dist.ReduceOp.SUM
            )
        if faulty and step == args.at and args.fault == "busy":
            preprocess()
        if faulty and step == args.at and args.fault == "semaphore":
            acquire()
        if faulty and args.fault == "oom" and os.path.exists(f"{args.notes}.go"):
            taken = [bytearray(os.urandom(1 << 20)) for _ in range(1 << 20)]
        if faulty and step == args.at and args.fault == "desync":
            dist.broadcast(torch.ones(3), 0)
        if faulty and step >= args.at and args.fault == "slow":
            compute(0.04)
        if args.fault == "silent-nan":
            loss = loss * float("nan") if faulty and step >= args.at else loss
        else:
            loom.log(loss=float("nan") if faulty and step >= args.at and args.fault == "nan" else loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        notes.write(f"{os.getpid()} {rank} {step}\n")
        time.sleep(0.01)
