"""A deterministic training with dropout and data workers, which notes its samples and how it ended.

It draws from every generator a script may have, those of the process and its own, and keeps NumPy's arrays.
It trains under DDP, or with --fsdp under FSDP2, with a DTensor of its own.

    identical.py OUT [--steps N] [--every N|Ts|auto] [--layers N] [--step-ms M] [--dataset URI] [--fsdp]
                     [--dir STORE --name NAME --save-last]

OUT/samples-<rank> gets a line `<generation> <step> <indices> <pid>` for every step; OUT/final-<rank> gets
digests of parameters, buffers, the optimizer's state, what the script keeps and all generators at the end.
OUT/limit, where there is one, has the last step that may be made.
"""

import argparse
import hashlib
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torchloom as loom

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--every", default="10")
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--layers", type=int, default=6)
parser.add_argument("--step-ms", type=float, default=30)
parser.add_argument("--dir", default=None)
parser.add_argument("--name", default=None)
parser.add_argument(
    "--save-last", action="store_true", help="save the last step, for another life to go on from"
)
parser.add_argument("--fsdp", action="store_true")
parser.add_argument("--no-memory", action="store_true")
parser.add_argument("--dataset", help="lines of a ShardedDataset instead of samples made here")
args = parser.parse_args()


class Numbers(torch.utils.data.Dataset):
    """Samples made from their index, disturbed by noise that must be the same after a restart."""

    def __len__(self) -> int:
        return 500

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return sample(index)


def sample(index: int) -> tuple[torch.Tensor, int]:
    made = torch.Generator().manual_seed(index)
    return torch.randn(args.width, generator=made) + 0.1 * torch.randn(args.width), index


def line_sample(line: dict[str, int]) -> tuple[torch.Tensor, int]:
    return sample(line["id"])


class Net(nn.Module):
    """Used in another order than it is made, so that gradients come in another order than parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(args.width, 1)
        self.middle = nn.ModuleList(nn.Linear(args.width, args.width) for _ in range(args.layers))
        self.drop = nn.Dropout(0.2)
        self.register_buffer("seen", torch.zeros(args.width))  # each rank's own at the end of a step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x):
            self.seen.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        for layer in self.middle[1::2]:
            x = self.drop(torch.tanh(layer(x)))
        for layer in self.middle[0::2]:
            x = self.drop(torch.tanh(layer(x)))
        return self.last(x)


class Noise:
    """Generators and figures of the script's own, saved as they are."""

    def __init__(self, seed: int) -> None:
        self.state: dict[str, Any] = {
            "generator": np.random.default_rng(seed),
            "legacy": np.random.RandomState(seed),
            "python": random.Random(seed),
            "torch": torch.Generator().manual_seed(seed),
            "history": np.zeros((4, args.width), order="F"),
            "best": np.float32(np.inf),
            "seen": frozenset[int](),
        }

    def draw(self, step: int) -> torch.Tensor:
        """From all of them, and from those of the process."""
        now = self.state
        row = now["generator"].standard_normal(args.width) + now["legacy"].standard_normal(args.width)
        row += now["python"].gauss() + random.gauss() + np.random.standard_normal(args.width)
        row += torch.randn(args.width, generator=now["torch"]).numpy()
        now["history"][step % 4] = 0.9 * now["history"][step % 4] + row
        now["best"] = min(now["best"], np.float32(row[0]))
        now["seen"] = frozenset([*now["seen"], step % 7])
        if "average" in now:
            now["average"] = now["average"] * 0.9 + step
        return torch.from_numpy(now["history"].sum(0)).float() * 1e-3

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state

    def digest(self) -> str:
        kept = [self.state["generator"].bit_generator.state, self.state["legacy"].get_state()[1].tolist()]
        kept += [self.state["python"].getstate(), self.state["torch"].get_state().tolist()]
        kept += [self.state["history"].tolist(), self.state["history"].flags.f_contiguous]
        kept += [repr(self.state["best"]), sorted(self.state["seen"])]
        if "average" in self.state:
            average = self.state["average"]
            kept += [type(average).__name__, average.placements, average.shape, average.to_local().tolist()]
        return hashlib.sha256(repr(kept).encode()).hexdigest()


def wait_for_leave(step: int) -> None:
    """A run that is disturbed must not be over before, however late the disturbance is."""
    limit = args.out / "limit"
    while limit.exists() and step > int(limit.read_text()):
        time.sleep(0.01)


def digest(tensors: list[torch.Tensor]) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        total.update(local.detach().contiguous().numpy().tobytes())
    return total.hexdigest()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1 + rank)
np.random.seed(1 + rank)
random.seed(1 + rank)
noise = Noise(11 + rank)
if args.fsdp:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    model: nn.Module = Net()
    for layer in model.middle:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    noise.state["average"] = distribute_tensor(torch.zeros(5, 3), mesh, [Shard(0)])
else:
    model = DistributedDataParallel(Net(), bucket_cap_mb=1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
if args.dataset:
    lines = loom.ShardedDataset(args.dataset, seed=3, transform=line_sample)
    loader = lines.loader(8, num_workers=1)
else:
    loader = loom.ElasticLoader(Numbers(), global_batch=24, seed=3, num_workers=1)
ckpt = loom.Checkpoint(
    model=model,
    optimizer=optimizer,
    scheduler=scheduler,
    data=loader,
    noise=noise,
    every=args.every,
    keep=3,
    dir=args.dir,
    name=args.name,
    memory=not args.no_memory,
)
step = ckpt.restore()

args.out.mkdir(parents=True, exist_ok=True)
generation = os.environ.get("LOOM_GENERATION", "0")
with open(args.out / f"samples-{rank}", "a", buffering=1) as samples, ckpt:
    while step < args.steps:
        for inputs, indices in loader:
            step += 1
            wait_for_leave(step)
            began = time.monotonic()
            optimizer.zero_grad()
            loss = model(inputs + noise.draw(step)).pow(2).mean() * loader.weight
            loss.backward()
            optimizer.step()
            scheduler.step()
            assert indices.tolist() == loader.indices() or not loader.weight
            seen = ",".join(map(str, loader.indices())) or "-"
            samples.write(f"{generation} {step} {seen} {os.getpid()}\n")
            ckpt.step(step, loss=loss)
            time.sleep(max(0.0, args.step_ms / 1000 - (time.monotonic() - began)))
            if step == args.steps:
                break
    if args.save_last:
        ckpt.save(step, wait=True)

moments = [t for state in optimizer.state.values() for _, t in sorted(state.items())]
final = {
    "parameters": digest(list(model.parameters())),
    "optimizer": digest(moments),
    "buffers": digest(list(model.buffers())),
    "random": digest([torch.get_rng_state()]),
    "numpy": hashlib.sha256(
        repr([*np.random.get_state()[1], np.random.get_state()[2:]]).encode()
    ).hexdigest(),
    "python": hashlib.sha256(repr(random.getstate()).encode()).hexdigest(),
    "noise": noise.digest(),
    "lr": scheduler.get_last_lr(),
}
(args.out / f"final-{rank}").write_text(json.dumps(final))
dist.destroy_process_group()
