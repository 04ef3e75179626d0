"""DDP across replicas with torchft: `loom run --replicas 2 examples/torchft_ddp.py`.

Nothing here is torchloom's: the script has the shape of torchft's own train_ddp.py. If a replica dies, the
others skip at most one step, and the lost one comes back and takes its weights from a survivor.
"""

from __future__ import annotations

import hashlib
import os
import time
from datetime import timedelta

import torch
from torch import nn

from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

STEPS = int(os.environ.get("MAX_STEPS", "200"))
STEP_S = float(os.environ.get("STEP_S", "0"))
"""Seconds that a step takes in addition, so that there is time to watch it."""
TIMEOUT = timedelta(seconds=int(os.environ.get("TORCHFT_TIMEOUT_SEC", "30")))


def main() -> None:
    replica = int(os.environ.get("REPLICA_GROUP_ID", "0"))
    torch.manual_seed(0)  # all replicas begin with the same weights
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def load_state_dict(state: dict[str, dict]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def state_dict() -> dict[str, dict]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"train_ddp_{replica}",
        timeout=TIMEOUT,
    )
    ddp = DistributedDataParallel(manager, model)
    sgd = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    optimizer = Optimizer(manager, sgd)

    while manager.current_step() < STEPS:
        step = manager.current_step()
        batch = torch.Generator().manual_seed(1000 * step + replica)
        inputs = torch.randn(16, 32, generator=batch)
        optimizer.zero_grad()  # asks for a quorum
        loss = ddp(inputs).square().mean()
        loss.backward()  # averages the gradients over the replicas of the quorum
        time.sleep(STEP_S)
        optimizer.step()  # commits the step if nothing failed
        rate, replicas = sgd.param_groups[0]["lr"], manager.num_participants()
        print(f"step {manager.current_step()} loss {loss.item():.4f} lr {rate:g} replicas {replicas}")

    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(f"done at step {manager.current_step()}, weights {hashlib.sha256(weights).hexdigest()[:16]}")
    manager.shutdown()


if __name__ == "__main__":
    main()
