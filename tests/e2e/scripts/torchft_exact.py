"""torchft DDP in which every committed step has the batches of all replicas: disturbed or not, the result is
the same. With `plain`, the same training in one process, without torchft."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
from torch import nn

import torchloom as loom

STEPS = int(os.environ.get("MAX_STEPS", "100"))
TIMEOUT = timedelta(seconds=3600)
REPLICAS = int(os.environ.get("NUM_REPLICA_GROUPS", "2"))
LEAST = int(os.environ.get("LEAST", REPLICAS))
"""Replicas without which no step is committed. With fewer than all, the result depends on who was there."""
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "0"))
PACE = os.environ.get("PACE", "")
"""A directory with a file for each replica: how long a step of it takes in addition."""


def compute(replica: int) -> None:
    time.sleep(float(Path(PACE, str(replica)).read_text()) if PACE else 0.02)


def setup() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def data(**place: int) -> loom.ElasticLoader:
    """Under torchft each replica takes its share of a global batch, whoever is there."""
    samples = torch.randn(4096, 32, generator=torch.Generator().manual_seed(1))
    return loom.ElasticLoader(samples, global_batch=48, seed=3, **place)


def forever(loader: loom.ElasticLoader) -> Iterator[torch.Tensor]:
    while True:
        yield from loader


def digest(model: nn.Module) -> str:
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(weights).hexdigest()[:16]


def conclude(model: nn.Module) -> None:
    print(f"weights {digest(model)}")


def plain() -> None:
    model, optimizer = setup()
    shares = [forever(data(rank=replica, world=REPLICAS)) for replica in range(REPLICAS)]
    for _ in range(STEPS):
        total = [torch.zeros_like(p) for p in model.parameters()]
        for replica in range(REPLICAS):
            optimizer.zero_grad()
            model(next(shares[replica])).square().mean().backward()
            for sum_, p in zip(total, model.parameters(), strict=True):
                sum_ += p.grad
        for sum_, p in zip(total, model.parameters(), strict=True):
            p.grad = sum_ / REPLICAS
        optimizer.step()
    conclude(model)


def main() -> None:
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    replica = int(os.environ["REPLICA_GROUP_ID"])
    model, sgd = setup()

    def load_state_dict(state: dict[str, dict]) -> None:
        model.load_state_dict(state["model"])
        sgd.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        min_replica_size=LEAST,
        load_state_dict=load_state_dict,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": sgd.state_dict()},
        replica_id=f"exact_{replica}",
        timeout=TIMEOUT,
        quorum_timeout=TIMEOUT,
        use_async_quorum=False,  # one that heals has the others' weights before it computes its gradients
    )
    ddp = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, sgd)
    loader = data()
    batches = forever(loader)
    checkpoint = loom.Checkpoint(
        model=model, optimizer=sgd, manager=manager, data=loader, every=SAVE_EVERY or 1
    )
    if SAVE_EVERY:
        checkpoint.restore()
    try:
        while True:  # until `loom set max_steps=…` ends it before the update of a step
            optimizer.zero_grad()  # asks for a quorum, and heals
            step = manager.current_step()
            batch = next(batches)
            compute(replica)
            ddp(batch).square().mean().backward()
            optimizer.step()
            if manager.current_step() == step:
                continue  # not committed
            step, replicas = manager.current_step(), manager.num_participants()
            used = loader.portion
            print(
                f"step {step} replicas {replicas} at {time.monotonic_ns()} has {digest(model)} "
                f"used {used.epoch} {used.first} {used.last}"
            )
            if SAVE_EVERY:
                checkpoint.step(step)
    except SystemExit:
        conclude(model)
        raise


if __name__ == "__main__":
    plain() if "plain" in sys.argv else main()
