"""A training that may change its number of ranks between two lives, and its batch and transforms within one.

    elastic.py OUT --until N

Goes on from the last life's end. OUT/loss gets `<step> <loss> <factor of the rate>`, OUT/seen-<rank> gets
`<step> <indices>`. At step 25 the batch grows, at step 45 a transform is added.

In double precision, so that what differs between worlds is the order of summation and nothing else.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torchloom as loom

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--until", type=int, required=True)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)


class Points(torch.utils.data.Dataset):
    """Points in 16 dimensions with the mean of the first four."""

    def __len__(self) -> int:
        return 500

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.Generator().manual_seed(index)
        point = torch.randn(16, generator=made)
        return point, point[:4].mean()


def noise(sample: tuple[torch.Tensor, torch.Tensor], std: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    return sample[0] + std * torch.randn(16), sample[1]


def mirror(sample: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return (-sample[0], -sample[1]) if torch.rand(()) < 0.5 else sample


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
transforms = loom.Transforms(noise=noise, mirror=mirror, active=["noise"])
loader = loom.ElasticLoader(Points(), global_batch=24, seed=5, transforms=transforms, num_workers=1)
rate = loom.ScaledRate(optimizer, loader, "sqrt", warmup=10)
ckpt = loom.Checkpoint(
    model=model,
    optimizer=optimizer,
    data=loader,
    rate=rate,
    transforms=transforms,
    every=10_000,
    dir=args.out / "ckpt",
    name="elastic",
    memory=False,
    replicated=("model", "optimizer", "rate", "transforms"),
)
step = ckpt.restore()
if step >= 25:
    loader.set_global_batch(34)

with open(args.out / "loss", "a") as losses, open(args.out / f"seen-{rank}", "a") as seen:
    while step < args.until:
        for inputs, targets in loader:
            step += 1
            optimizer.zero_grad()
            loss = (model(inputs).squeeze(1) - targets).pow(2).mean() * loader.weight
            loss.backward()
            optimizer.step()
            dist.all_reduce(loss.detach())
            seen.write(f"{step} {','.join(map(str, loader.indices()))}\n")
            if rank == 0:
                losses.write(f"{step} {loss.item() / world!r} {rate.factor!r}\n")
            if step == 25:
                loader.batch.set(34)
            if step == 45:
                transforms.add("mirror")
            if step == args.until:
                break
ckpt.save(step, wait=True)
ckpt.close()
dist.destroy_process_group()
