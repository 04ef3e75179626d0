"""A DDP job to try detection on: a data loader, loss and gradient norm, and on wish what healthy jobs do.

    watched.py [--step-ms 20] [--busy SHARE] [--wide N] [--pauses N --notes FILE] [--lengths] [--uneven]
               [--housekeeping] [--seed N]

`--pauses` makes one rank at a time do something long (3 to 60 s) that it does not announce, `--lengths` makes
batches of three lengths, `--uneven` of any, `--housekeeping` saves, evaluates, collects garbage and changes
its learning rate. All of it is seeded and differs by rank and step. Pauses are noted in a file, and counted
there.
"""

import argparse
import gc
import math
import os
import random
import tempfile
import threading
import time

import hostile
import odd
import rare
import strangers
import torch
import torch.distributed as dist
import uncommon
import unseen
from pauses import KINDS
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import torchloom as loom

parser = argparse.ArgumentParser()
parser.add_argument("--step-ms", type=float, default=20.0)
parser.add_argument("--busy", type=float, default=0.0, help="share of a step that computes and not sleeps")
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--pauses", type=int, default=0, help="one in so many steps")
parser.add_argument("--notes", default="")
parser.add_argument("--shortest", type=float, default=3.0)
parser.add_argument("--longest", type=float, default=60.0)
parser.add_argument("--lengths", action="store_true")
parser.add_argument("--uneven", action="store_true")
parser.add_argument("--housekeeping", action="store_true")
parser.add_argument("--wide", type=int, default=64, help="of the hidden layer: 8192 is 1 MB of gradients")
parser.add_argument("--never-starts", type=int, default=-1, metavar="RANK")
parser.add_argument(
    "--odd", default="", help="a kind of odd.py, hostile.py, unseen.py, uncommon.py or rare.py"
)
parser.add_argument("--odd-rank", type=int, default=-1)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


class Samples(Dataset):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        if mine:
            odd.in_loader(args.odd, index)
        return torch.full((32,), (index % 97) / 97)


def work(seconds: float) -> None:
    """Compute for a share of the time and sleep for the rest, as a device's host would."""
    until = time.thread_time() + seconds * args.busy
    while time.thread_time() < until:
        pass
    time.sleep(seconds * (1 - args.busy))


def pause(step: int) -> None:
    who, what = chance.randrange(world), chance.choice(KINDS)
    # As many of 3 to 6 s as of 30 to 60 s.
    seconds = math.exp(chance.uniform(math.log(args.shortest), math.log(args.longest)))
    if step > 30 and chance.randrange(args.pauses) == 0 and who == rank:
        what(seconds)
        with open(args.notes, "a") as file:
            file.write(f"{rank} {step} {what.__name__} {seconds:.1f}\n")


def keep_house(step: int) -> None:
    if step % 150 == 0:
        until = time.monotonic() + 1 + step % 3
        with loom.phase("eval"):
            while time.monotonic() < until:
                model.module(torch.ones(64, 32))
                time.sleep(0.02)
    if step % 110 == 0 and rank == 0:  # nobody is told of this one
        with tempfile.NamedTemporaryFile() as file:
            torch.save(optimizer.state_dict(), file)
            os.fsync(file.fileno())
            time.sleep(0.5)
    if step % 70 == 35 * rank:
        gc.collect()
        time.sleep(0.1)
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * 0.1 ** (step // 400 % 3)


first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
mine = first_life and int(os.environ["RANK"]) == args.odd_rank
odd.before_init(args.odd, mine)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(args.seed)
if rank == args.never_starts:
    threading.Event().wait()
layers = torch.nn.Sequential(torch.nn.Linear(32, args.wide), torch.nn.ReLU(), torch.nn.Linear(args.wide, 1))
model = DistributedDataParallel(layers)
if hook := hostile.sleeping_hook(args.odd, mine):
    model.register_comm_hook(None, hook)
if hook := rare.slow_hook(args.odd, mine, args.step_ms / 1000):
    model.register_comm_hook(None, hook)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(
    Samples(), batch_size=64, num_workers=int(args.odd == "loader" or args.odd in hostile.LOADERS)
)
ckpt = loom.Checkpoint(model=model, optimizer=optimizer, every=100) if args.housekeeping else None
chance = random.Random(args.seed)
for step, batch in enumerate(loader, start=1):
    if args.pauses:
        pause(step)
    if args.odd:
        odd.in_step(args.odd, mine, step, args.step_ms / 1000)
        hostile.in_step(args.odd, mine, step, first_life, args.odd_rank)
        unseen.in_step(args.odd, mine, step, first_life, args.odd_rank)
        uncommon.in_step(args.odd, mine, step, first_life, args.odd_rank, args.step_ms / 1000)
        rare.in_step(args.odd, mine, step, first_life, args.odd_rank, args.step_ms / 1000)
        strangers.in_step(args.odd, mine, step, first_life, args.odd_rank, args.step_ms / 1000, model)
    if args.housekeeping:
        keep_house(step)
    luck = random.Random(f"{args.seed} {rank} {step}")
    share = luck.uniform(0.3, 1.7) if args.uneven else luck.choice((0.6, 1.0, 1.4)) if args.lengths else 1.0
    # Noise that nothing can learn: a loss that falls to 0 jumps by any factor, and no real one does.
    loss = (model(batch) - torch.randn(len(batch), 1)).square().mean()
    loss.backward()
    work(args.step_ms * share / 1000)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    optimizer.step()
    optimizer.zero_grad()
    loom.log(loss=loss, grad_norm=norm)
    loom.step(step)
    if ckpt is not None:
        ckpt.step(step, loss=loss)
    if step >= args.steps:
        break
dist.destroy_process_group()
