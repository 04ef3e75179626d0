"""A DDP job to try detection on: a data loader, loss and gradient norm, and on wish what healthy jobs do.

    watched.py [--step-ms 20] [--steps N] [--pauses N --shortest S --longest S] [--lengths] [--seed N]

`--pauses` makes one rank at a time do something long that it does not announce (evaluate, save, read a slow
file, compile), `--lengths` makes batches of different lengths. Both are seeded and differ by rank and step.
"""

import argparse
import gc
import os
import random
import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import torchloom as loom

parser = argparse.ArgumentParser()
parser.add_argument("--step-ms", type=float, default=20.0)
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--pauses", type=int, default=0, help="one in so many steps")
parser.add_argument("--shortest", type=float, default=3.0)
parser.add_argument("--longest", type=float, default=60.0)
parser.add_argument("--lengths", action="store_true")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


class Samples(Dataset):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((32,), (index % 97) / 97)


def evaluate(seconds: float) -> None:
    """On the CPU, without a word to anybody."""
    until = time.monotonic() + seconds
    small = torch.nn.Linear(32, 32)
    with torch.no_grad():
        while time.monotonic() < until:
            small(torch.ones(64, 32))
            time.sleep(0.01)


def save(seconds: float) -> None:
    until = time.monotonic() + seconds
    with tempfile.NamedTemporaryFile() as file:
        while time.monotonic() < until:
            file.seek(0)
            torch.save(model.state_dict(), file)
            os.fsync(file.fileno())
            time.sleep(0.05)


def slow_read(seconds: float) -> None:
    """A read that blocks: of a pipe into which somebody writes late."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        time.sleep(seconds)
        os.write(writing, b"x")
        os._exit(0)
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
    os.wait()


def recompile(seconds: float) -> None:
    """Much Python, no progress."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        compile("\n".join(f"x{i} = {i}" for i in range(2000)), "graph", "exec")
        time.sleep(0.005)


def collect(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(args.seed)
layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
model = DistributedDataParallel(layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(Samples(), batch_size=64)
chance = random.Random(args.seed)
for step, batch in enumerate(loader, start=1):
    who, what, seconds = (
        chance.randrange(world),
        chance.randrange(5),
        chance.uniform(args.shortest, args.longest),
    )
    if args.pauses and step > 30 and chance.randrange(args.pauses) == 0 and who == rank:
        (evaluate, save, slow_read, recompile, collect)[what](seconds)
    share = random.Random(f"{args.seed} {rank} {step}").choice((0.6, 1.0, 1.4)) if args.lengths else 1.0
    # Noise that nothing can learn: a loss that falls to 0 jumps by any factor, and no real one does.
    loss = (model(batch) - torch.randn(len(batch), 1)).square().mean()
    loss.backward()
    time.sleep(args.step_ms * share / 1000)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    optimizer.step()
    optimizer.zero_grad()
    loom.log(loss=loss, grad_norm=norm)
    loom.step(step)
    if step >= args.steps:
        break
dist.destroy_process_group()
