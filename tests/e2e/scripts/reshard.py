"""Trains a few steps under FSDP2 or DDP and prints a digest of the whole state, however it is sharded.

reshard.py fsdp|ddp|memory DIR STEPS      prints `restored <step> <digest>` and `saved <step> <digest>`

A state that was restored is saved once more, under the name `again`. `memory` is FSDP2 with the memory tier.
"""

import hashlib
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torchloom as loom

sys.path.append(str(Path(__file__).parents[2] / "states"))
from every_leaf import Holder, differences, everything

kind, directory, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
if kind == "memory":
    os.environ["LOOM_MEMORY_DIR"] = f"{directory}/memory"
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
plain = torch.nn.Sequential(torch.nn.Linear(17, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5))
if kind != "ddp":
    from torch.distributed.fsdp import fully_shard

    model: torch.nn.Module = fully_shard(plain, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
else:
    model = DistributedDataParallel(plain)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def digest() -> str:
    total = hashlib.sha256()
    moments = [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    for tensor in [*model.parameters(), *moments]:
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        total.update(whole.detach().numpy().tobytes())
    return total.hexdigest()[:16]


class Lines:
    """Data with a position; notes who saw what."""

    def __init__(self) -> None:
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


data, held = Lines(), Holder(everything(rank + 50))
parts = {"model": model, "optimizer": optimizer, "data": data, "held": held}
with loom.Checkpoint(**parts, dir=directory, name="job", every=1000) as ckpt:
    first = ckpt.restore()
    if first:
        (whose,) = (n for n in range(8) if not differences(everything(n), held.state))
        assert ckpt.restored is not None and (ckpt.restored.where == "memory") == (kind == "memory")
        with loom.Checkpoint(**parts, dir=directory, name="again", memory=False, every=1000) as again:
            again.save(first, wait=True)
        assert whose in (rank, rank - dist.get_world_size() // 2, 0)
        found = digest()
        if rank == 0:
            print(f"restored {first} {found}", flush=True)
    assert data.position == first
    for step in range(first + 1, steps + 1):
        optimizer.zero_grad()
        model(torch.randn(8, 17)).pow(2).mean().backward()
        optimizer.step()
        data.position = step
        ckpt.step(step)
    held.state = everything(rank)
    ckpt.save(steps, wait=True)
    found = digest()
    if rank == 0:
        print(f"saved {steps} {found}", flush=True)
dist.destroy_process_group()
