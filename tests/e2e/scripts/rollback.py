"""Trains under FSDP2 or DDP, is rolled back live on the way, and prints a digest of every rank's end.

rollback.py fsdp|ddp DIR plain|store|memory      `store`, `memory`: where it is rolled back to
"""

import hashlib
import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torchloom as loom
from torchloom.checkpoint import live
from torchloom.checkpoint.restoring import rollback
from torchloom.checkpoint.saving.interval import Every
from torchloom.errors import CheckpointDamaged, CheckpointError

sys.path.append(str(Path(__file__).parents[2] / "states"))
from every_leaf import Holder, differences, everything

kind, directory, rolled, memory = sys.argv[1], sys.argv[2], sys.argv[3] != "plain", sys.argv[3] == "memory"
if memory:
    os.environ["LOOM_MEMORY_DIR"] = f"{directory}/memory"
goal = 11 if memory else 5
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
plain = torch.nn.Sequential(torch.nn.Linear(8, 30), torch.nn.Dropout(0.2), torch.nn.Linear(30, 5))
if kind == "fsdp":
    from torch.distributed.fsdp import fully_shard

    model: torch.nn.Module = fully_shard(plain, mesh=dist.init_device_mesh("cpu", (world,)))
else:
    model = DistributedDataParallel(plain)
torch.manual_seed(rank)
np.random.seed(rank)
random.seed(rank)
noise = Holder(
    {"seed": rank, "own": np.random.default_rng(rank), "row": np.zeros(8), "all": everything(rank)}
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
dataset = list(torch.randn(600, 8, generator=torch.Generator().manual_seed(3)))
loader = loom.ElasticLoader(dataset, global_batch=2 * world)
seen: dict[int, list[int]] = {}


def digest() -> str:
    total = hashlib.sha256()
    moments = [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    for tensor in [*model.parameters(), *moments]:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        total.update(local.detach().numpy().tobytes())
    total.update(torch.get_rng_state().numpy().tobytes())
    total.update(
        repr((random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tolist())).encode()
    )
    total.update(noise.state["row"].tobytes())
    total.update(repr(noise.state["own"].bit_generator.state).encode())
    assert differences(everything(noise.state["seed"]), noise.state["all"]) == []
    return total.hexdigest()[:16]


def refused(step: int) -> None:
    """Rank 1 cannot load: nobody goes back."""
    place = "from_memory" if memory else "from_store"
    before, whole = digest(), getattr(rollback, place)
    if rank == 1:

        def broken(*args: object) -> object:
            raise CheckpointDamaged("rank 1 reads rubbish")

        setattr(rollback, place, broken)
    try:
        ckpt.roll_back(goal)
    except CheckpointError as error:
        assert "rank 1 reads rubbish" in str(error)
    else:
        raise AssertionError("it went back")
    setattr(rollback, place, whole)
    assert digest() == before


with loom.Checkpoint(
    model=model, optimizer=optimizer, data=loader, noise=noise, dir=directory, name="job", every=5
) as ckpt:
    ckpt.restore()
    ckpt._saver.agenda.memory.every = Every(steps=1)
    step = 0
    done = False
    for batch in loader:
        seen[step + 1] = loader.indices()
        noise.state["row"] += noise.state["own"].random(8) + np.random.random(8) + random.random()
        noise.state |= {"seed": 100 * rank + step, "all": everything(100 * rank + step)}
        batch = batch + torch.from_numpy(noise.state["row"]).float() * 1e-3
        optimizer.zero_grad()
        (model(batch).pow(2).mean() * loader.weight).backward()
        if rolled and step + 1 == 12 and not done:
            done = True
            found = live.current()
            assert found is ckpt
            ckpt.at_end(refused)
            ckpt.at_end(lambda step: ckpt.roll_back(goal))
        optimizer.step()
        step = ckpt.step(step + 1)
        ckpt.wait()
        if step == 20:
            break
assert done is rolled
mine = (rank, digest(), hashlib.sha256(repr(sorted(seen.items())).encode()).hexdigest()[:16])
everyone: list[object] = [None] * world
dist.all_gather_object(everyone, mine)
if rank == 0:
    print(everyone, flush=True)
dist.destroy_process_group()
