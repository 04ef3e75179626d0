"""HSDP with torchft: `loom run --replicas 2 --nproc-per-node 2 examples/torchft_hsdp.py`.

FSDP2 shards the weights over the ranks of a replica, and torchft averages each shard's gradients over the
replicas. If a rank dies, its replica is replaced as a whole, because nobody else has the lost shard of it;
the other replicas keep training, and each new rank takes its shard from the same rank of a survivor.
"""

from __future__ import annotations

import hashlib
import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from torchft import Manager, Optimizer, ProcessGroupGloo

STEPS = int(os.environ.get("MAX_STEPS", "200"))
STEP_S = float(os.environ.get("STEP_S", "0"))
"""Seconds that a step takes in addition, so that there is time to watch it."""
TIMEOUT = timedelta(seconds=int(os.environ.get("TORCHFT_TIMEOUT_SEC", "30")))


def shard(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


def main() -> None:
    replica = int(os.environ.get("REPLICA_GROUP_ID", "0"))
    dist.init_process_group("gloo")  # the ranks of this replica
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = dist.init_device_mesh("cpu", (ranks,), mesh_dim_names=("shard",))
    torch.manual_seed(0)  # all replicas begin with the same weights
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    fully_shard(model, mesh=mesh)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def state_dict() -> dict[str, Any]:
        """This rank's shards."""
        momentum = [shard(sgd.state[p].get("momentum_buffer")) for p in model.parameters()]
        return {"weights": [shard(p.detach()) for p in model.parameters()], "momentum": momentum}

    def load_state_dict(state: dict[str, Any]) -> None:
        for p, weights, momentum in zip(model.parameters(), state["weights"], state["momentum"], strict=True):
            shard(p.detach()).copy_(weights)
            if momentum is not None:
                buffer = sgd.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                shard(buffer).copy_(momentum)

    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"train_hsdp_{replica}",
        timeout=TIMEOUT,
    )
    model.set_all_reduce_hook(lambda gradients: manager.allreduce(gradients).wait())
    optimizer = Optimizer(manager, sgd)

    try:
        while manager.current_step() < STEPS:
            step = manager.current_step()
            batch = torch.Generator().manual_seed(1000 * step + ranks * replica + rank)
            inputs = torch.randn(16, 32, generator=batch)
            optimizer.zero_grad()  # asks for a quorum
            loss = model(inputs).square().mean()
            loss.backward()  # reduces over the ranks of the replica, then over the replicas of the quorum
            time.sleep(STEP_S)
            optimizer.step()  # commits the step if nothing failed on any rank
            rate, replicas = sgd.param_groups[0]["lr"], manager.num_participants()
            print(f"step {manager.current_step()} loss {loss.item():.4f} lr {rate:g} replicas {replicas}")
    finally:  # also if `loom set max_steps=…` ends it
        weights = b"".join(shard(p.detach()).numpy().tobytes() for p in model.parameters())
        print(f"done at step {manager.current_step()}, weights {hashlib.sha256(weights).hexdigest()[:16]}")
    manager.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
