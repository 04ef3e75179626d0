"""LocalSGD across replicas with torchft: `loom run --replicas 2 examples/torchft_local_sgd.py`.

Every replica trains by itself; every `sync_every` steps all average their weights, which is one commit.
Nothing here is torchloom's, and `loom set NAME sync_every=32` changes all replicas after the same commit.
"""

from __future__ import annotations

import hashlib
import os
import time
from datetime import timedelta

import torch
from torch import nn
from torchft.local_sgd import LocalSGD

from torchft import Manager, ProcessGroupGloo

ROUNDS = int(os.environ.get("ROUNDS", "50"))
STEP_S = float(os.environ.get("STEP_S", "0"))
TIMEOUT = timedelta(seconds=int(os.environ.get("TORCHFT_TIMEOUT_SEC", "30")))


def main() -> None:
    replica = int(os.environ.get("REPLICA_GROUP_ID", "0"))
    torch.manual_seed(0)  # all replicas begin with the same weights
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

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
        replica_id=f"local_sgd_{replica}",
        timeout=TIMEOUT,
        use_async_quorum=False,  # one that heals has the weights of the others before its next step
    )
    with LocalSGD(manager, model, optimizer, sync_every=8):
        made = 0
        while manager.current_step() < ROUNDS:
            before = manager.current_step()
            batch = torch.Generator().manual_seed(100_000 * replica + 1000 * before + made)
            optimizer.zero_grad()
            loss = model(torch.randn(16, 32, generator=batch)).square().mean()
            loss.backward()
            time.sleep(STEP_S)
            optimizer.step()  # every `sync_every` times also averages and commits
            made += 1
            if manager.current_step() != before:
                rate, replicas = optimizer.param_groups[0]["lr"], manager.num_participants()
                print(f"step {manager.current_step()} of {made} updates, lr {rate:g} replicas {replicas}")
                made = 0

    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(f"done at step {manager.current_step()}, weights {hashlib.sha256(weights).hexdigest()[:16]}")
    manager.shutdown()


if __name__ == "__main__":
    main()
