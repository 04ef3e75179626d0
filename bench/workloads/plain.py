"""Scripts that are not a usual training, to try detection on.

    plain.py KIND --rank R [--step-ms 30]

KIND: no-optimizer (collectives only; rank R waits for a FIFO that nobody opens), spawned (every worker trains
in two processes of `mp.spawn`, and one of rank R waits likewise), same-start (two ranks raise the same error
before the first step), ended (all ranks have trained, and rank R evaluates for 30 s), export (the others have
exited by then), epochs (all ranks pause for 4 s now and then). In the following rank R waits for the FIFO at
step 60: local-sgd (ranks average every 20 steps), ahead (reductions are awaited a step later), server (rank 0
gathers and broadcasts), any-source (rank 0 receives from anybody), hierarchical (pairs reduce, their first
ranks reduce, and broadcast).
"""

import argparse
import itertools
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from odd import AT, SECONDS

parser = argparse.ArgumentParser()
parser.add_argument("kind")
parser.add_argument("--rank", type=int, required=True)
parser.add_argument("--step-ms", type=float, default=30.0)
parser.add_argument("--seed")


def wait_for_nobody() -> None:
    path = tempfile.mkdtemp() + "/fifo"
    os.mkfifo(path)
    with open(path) as file:
        file.read()


def reduces(args: argparse.Namespace, stuck: bool) -> None:
    for step in itertools.count():
        if step == 10 * AT and stuck:  # its pace is learned from looks, two a second
            wait_for_nobody()
        time.sleep(args.step_ms / 1000)
        dist.all_reduce(torch.ones(64))


def trains(args: argparse.Namespace, steps: int) -> None:
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    for _ in range(steps):
        time.sleep(args.step_ms / 1000)
        net(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def loops(args: argparse.Namespace, stuck: bool) -> None:
    """Other ways to talk than one reduction a step, with an optimizer that makes the steps."""
    rank, world = dist.get_rank(), dist.get_world_size()
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    pairs = [dist.new_group([r for r in (a, a + 1) if r < world]) for a in range(0, world, 2)]
    leaders = dist.new_group(list(range(0, world, 2)))
    late: list[dist.Work] = []
    for step in itertools.count(1):
        if step == AT and stuck and args.kind != "epochs":
            wait_for_nobody()
        time.sleep(args.step_ms / 1000)
        net(torch.ones(4, 8)).sum().backward()
        value = torch.ones(64)
        match args.kind:
            case "epochs":
                dist.all_reduce(value)
                if step % 80 == 0:
                    time.sleep(4)
            case "local-sgd" if step % 20 == 0:
                dist.all_reduce(value)
            case "ahead":
                for work in late:
                    work.wait()
                late = [dist.all_reduce(value, async_op=True)]
            case "server":
                dist.gather(value, [torch.empty(64) for _ in range(world)] if rank == 0 else None, 0)
                dist.broadcast(value, 0)
            case "any-source":
                for _ in range(world - 1 if rank == 0 else 0):
                    dist.recv(value)
                if rank:
                    dist.send(value, 0)
                for peer in range(1, world if rank == 0 else 1):
                    dist.send(value, peer)
                if rank:
                    dist.recv(value, 0)
            case "hierarchical":
                dist.all_reduce(value, group=pairs[rank // 2])
                if rank % 2 == 0:
                    dist.all_reduce(value, group=leaders)
                dist.broadcast(value, rank // 2 * 2, group=pairs[rank // 2])
        optimizer.step()
        optimizer.zero_grad()


def spawned(rank: int, args: argparse.Namespace, store: str, stuck: bool) -> None:
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    reduces(args, stuck and rank == 1)


def main() -> None:
    args = parser.parse_args()
    first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if args.kind == "spawned":
        mp.spawn(spawned, (args, tempfile.mkdtemp() + "/store", rank == args.rank), nprocs=2)
        return
    dist.init_process_group("gloo")
    if args.kind == "same-start" and first_life and rank in (args.rank, (args.rank + 1) % world):
        raise ValueError(f"DistributedDataParallel device_ids [{rank}] and the module's device do not fit")
    if args.kind in ("epochs", "local-sgd", "ahead", "server", "any-source", "hierarchical"):
        loops(args, first_life and rank == args.rank)
    elif args.kind in ("ended", "export"):
        trains(args, 200)
        if args.kind == "export" and rank != args.rank:
            return
        until = time.monotonic() + (SECONDS if rank == args.rank and first_life else 0)
        while time.monotonic() < until:
            sum(range(10_000))
        if args.kind == "ended":
            dist.barrier()
            time.sleep(SECONDS / 3)
    else:
        reduces(args, first_life and rank == args.rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
