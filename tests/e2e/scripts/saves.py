"""A small DDP training with loom.Checkpoint and nothing else of torchloom.

saves.py NOTES STORE [--every N] [--keep N] [--forgetful]

Every rank appends a line `<generation> <rank> <step>` to NOTES for every step.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torchloom as loom

parser = argparse.ArgumentParser()
parser.add_argument("notes")
parser.add_argument("store")
parser.add_argument("--every", default="5")
parser.add_argument("--keep", type=int, default=50)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--memory", action="store_true")
parser.add_argument(
    "--forgetful", action="store_true", help="keep an average that does not load what it saved"
)
args = parser.parse_args()


class Forgetful:
    """Keeps something else than it is given."""

    average = torch.ones(3)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"average": self.average}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.average = state["average"] * 2


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Linear(args.width, args.width))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
parts = {"model": model, "optimizer": optimizer, **({"mean": Forgetful()} if args.forgetful else {})}
ckpt = loom.Checkpoint(**parts, every=args.every, keep=args.keep, dir=args.store, memory=args.memory)
step = ckpt.restore()
with open(args.notes, "a", buffering=1) as notes:
    while True:
        step += 1
        optimizer.zero_grad()
        loss = model(torch.randn(8, args.width)).pow(2).mean()
        loss.backward()
        optimizer.step()
        notes.write(f"{os.environ['LOOM_GENERATION']} {rank} {step}\n")
        ckpt.step(step, loss=loss)
        time.sleep(0.02)
